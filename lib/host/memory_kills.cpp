#include "host/memory_kills.h"

#include <fstream>

#include "host/machine.h"

namespace scaletrain {
namespace {

// The line "oom_kill 3" of a file of counters.
std::optional<std::int64_t> count_in(const std::string& path) {
  std::ifstream file(path);
  std::string name;
  std::int64_t value = 0;
  while (file >> name >> value)
    if (name == "oom_kill") return value;
  return std::nullopt;
}

}  // namespace

std::optional<std::int64_t> memory_kills(const std::string& membership, const std::string& mounts,
                                         const std::string& machine) {
  std::optional<std::int64_t> count;
  for_each_control_group(membership, mounts, "memory", [&count](const std::string& folder, bool is_version_2) {
    if (!count) count = count_in(folder + (is_version_2 ? "/memory.events" : "/memory.oom_control"));
  });
  return count ? count : count_in(machine);
}

}  // namespace scaletrain
