#include "base/numbers/magnitude.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>

namespace scaletrain {

std::string short_count(double value) {
  constexpr std::array<const char*, 5> units = {"", "K", "M", "B", "T"};
  constexpr double rounds_up = 999.5;
  if (!(value >= 0)) return "unknown";
  if (value >= 1e15 * rounds_up / 1000) return fmt::format("{:.2e}", value);
  if (value < rounds_up) return fmt::format("{:.3g}", value);
  std::size_t unit = 0;
  for (; value >= rounds_up; value /= 1000) ++unit;
  return fmt::format("{:.{}f}{}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, units[unit]);
}

}  // namespace scaletrain
