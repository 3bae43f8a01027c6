#include "plan/memory_plan.h"

#include <fmt/format.h>

#include "base/text.h"

namespace scaletrain {

std::size_t MemoryPlan::total() const {
  std::size_t sum = 0;
  for (const MemoryItem& item : items) sum += item.bytes;
  return sum;
}

std::size_t MemoryPlan::total_of_host() const {
  std::size_t sum = 0;
  for (const MemoryItem& item : items)
    if (item.is_of_host) sum += item.bytes;
  return sum;
}

std::string MemoryPlan::text() const {
  std::string text;
  for (const MemoryItem& item : items)
    if (item.bytes > 0) text += fmt::format("  {:<28} {:>12}\n", item.purpose, bytes_text(item.bytes));
  return text + fmt::format("  {:<28} {:>12}\n", "total", bytes_text(total()));
}

}  // namespace scaletrain
