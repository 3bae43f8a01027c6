#include "host/memory_kills.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "base/text.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

// The line "oom_kill 3" of a file of counters.
std::optional<std::int64_t> count_in(const fs::path& path) {
  std::ifstream file(path);
  std::string name;
  std::int64_t value = 0;
  while (file >> name >> value)
    if (name == "oom_kill") return value;
  return std::nullopt;
}

// Where the group's counters may be: below the mount, or at its root, where a container sees its own group.
std::vector<fs::path> counter_files(const fs::path& membership, const fs::path& mounts) {
  std::vector<fs::path> files;
  std::ifstream groups(membership);
  for (std::string line; std::getline(groups, line);) {
    const std::vector<std::string> fields = split_text(line, ':');
    if (fields.size() < 3) continue;
    const fs::path group = fs::path(fields[2]).relative_path();
    const std::vector<std::string> controllers = split_text(fields[1], ',');
    const bool is_memory = std::find(controllers.begin(), controllers.end(), "memory") != controllers.end();
    if (fields[0] == "0") {
      files.push_back(mounts / group / "memory.events");
      files.push_back(mounts / "memory.events");
    } else if (is_memory) {
      files.push_back(mounts / "memory" / group / "memory.oom_control");
      files.push_back(mounts / "memory" / "memory.oom_control");
    }
  }
  return files;
}

}  // namespace

std::optional<std::int64_t> memory_kills(const fs::path& membership, const fs::path& mounts, const fs::path& machine) {
  for (const fs::path& file : counter_files(membership, mounts))
    if (const auto count = count_in(file)) return count;
  return count_in(machine);
}

}  // namespace scaletrain
