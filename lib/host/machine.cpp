#include "host/machine.h"

#include <fmt/core.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/text.h"

namespace scaletrain {
namespace {

std::optional<std::string> first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  if (!in || !std::getline(in, line)) return std::nullopt;
  return line;
}

template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

template <class Number>
std::optional<Number> number_in(const std::string& path) {
  const auto line = first_line(path);
  return line ? parse_number<Number>(*line) : std::nullopt;
}

bool lists(std::string_view controllers, std::string_view controller) {
  const auto parts = split_text(controllers, ',');
  return std::find(parts.begin(), parts.end(), controller) != parts.end();
}

// "pid:[4026531836]"
std::string namespace_of_kind(const std::string& kind) {
  std::array<char, 256> text{};
  const ssize_t size = ::readlink(("/proc/self/ns/" + kind).c_str(), text.data(), text.size());
  return {text.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0))};
}

// The names on the way to a control group, from the root of its hierarchy on. What leads out of what is mounted here
// ("/../x", of a process in another namespace) leads to its root.
std::vector<std::string> names_on_path(std::string_view path) {
  std::vector<std::string> names;
  for (std::string& name : split_text(path, '/')) {
    if (name == "..") {
      if (!names.empty()) names.pop_back();
    } else if (!name.empty() && name != ".") {
      names.push_back(std::move(name));
    }
  }
  return names;
}

// The group of this path below the root of its hierarchy, then those above it.
void visit_upwards(const std::string& root, std::string_view path,
                   const std::function<void(const std::string&)>& visit) {
  std::vector<std::string> folders = {root};
  for (const std::string& name : names_on_path(path)) folders.push_back(folders.back() + "/" + name);
  for (auto folder = folders.rbegin(); folder != folders.rend(); ++folder) visit(*folder);
}

}  // namespace

void for_each_control_group(const std::string& membership, const std::string& mounts, std::string_view controller,
                            const std::function<void(const std::string&, bool)>& visit) {
  std::ifstream in(membership);
  std::string line;
  while (std::getline(in, line)) {
    // hierarchy:controllers:path; version 2 has an empty list of controllers
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_version_2 = controllers.empty();
    if (!is_version_2 && !lists(controllers, controller)) continue;
    const std::string path = line.substr(second + 1);
    if (is_version_2) {
      visit_upwards(mounts, path, [&visit](const std::string& folder) { visit(folder, true); });
      continue;
    }
    // Controllers that share a hierarchy are mounted under all their names together, or each has its own.
    const auto visit_old = [&visit](const std::string& folder) { visit(folder, false); };
    visit_upwards(mounts + "/" + controllers, path, visit_old);
    if (controllers != controller) visit_upwards(fmt::format("{}/{}", mounts, controller), path, visit_old);
  }
}

std::optional<std::uint64_t> control_group_memory(const std::string& membership, const std::string& mounts) {
  std::optional<std::uint64_t> least;
  for_each_control_group(membership, mounts, "memory", [&](const std::string& folder, bool is_version_2) {
    // "max", or a number near 2^63 in version 1, means no limit.
    const auto limit = number_in<std::uint64_t>(folder + (is_version_2 ? "/memory.max" : "/memory.limit_in_bytes"));
    if (limit && *limit < (1ull << 62) && (!least || *limit < *least)) least = limit;
  });
  return least;
}

std::optional<double> control_group_processors(const std::string& membership, const std::string& mounts) {
  std::optional<double> least;
  for_each_control_group(membership, mounts, "cpu", [&](const std::string& folder, bool is_version_2) {
    std::optional<std::int64_t> quota;
    std::optional<std::int64_t> period;
    if (is_version_2) {
      // "QUOTA PERIOD", both in microseconds, or "max PERIOD"
      const auto parts = split_text(first_line(folder + "/cpu.max").value_or(""), ' ');
      if (parts.size() == 2) {
        quota = parse_number<std::int64_t>(parts[0]);
        period = parse_number<std::int64_t>(parts[1]);
      }
    } else {
      quota = number_in<std::int64_t>(folder + "/cpu.cfs_quota_us");
      period = number_in<std::int64_t>(folder + "/cpu.cfs_period_us");
    }
    if (!quota || !period || *quota <= 0 || *period <= 0) return;
    const double processors = static_cast<double>(*quota) / static_cast<double>(*period);
    if (!least || processors < *least) least = processors;
  });
  return least;
}

std::uint64_t available_memory() {
  std::uint64_t total = std::numeric_limits<std::uint64_t>::max();
  std::ifstream in("/proc/meminfo");
  std::string line;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string key;
    std::uint64_t kilobytes = 0;
    if (words >> key >> kilobytes && key == "MemTotal:") {
      total = kilobytes * 1024;
      break;
    }
  }
  const auto limit = control_group_memory("/proc/self/cgroup", "/sys/fs/cgroup");
  return limit ? std::min(total, *limit) : total;
}

int available_processors() {
  int processors = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t mask;
  CPU_ZERO(&mask);
  // Fails on machines with more processors than the mask has bits; then the library's count stands.
  if (::sched_getaffinity(0, sizeof mask, &mask) == 0) processors = CPU_COUNT(&mask);
  const auto quota = control_group_processors("/proc/self/cgroup", "/sys/fs/cgroup");
  if (quota && *quota < processors) processors = static_cast<int>(std::ceil(*quota));
  return std::max(processors, 1);
}

std::vector<int> affinity_processors() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  std::vector<int> processors;
  if (::sched_getaffinity(0, sizeof mask, &mask) != 0) return processors;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor)
    if (CPU_ISSET(static_cast<std::size_t>(processor), &mask)) processors.push_back(processor);
  return processors;
}

std::vector<int> share_of_processors(const std::vector<int>& processors, std::int64_t share, std::int64_t num_shares) {
  const auto count = static_cast<std::int64_t>(processors.size());
  if (count < num_shares) return {};
  return {processors.begin() + count * share / num_shares, processors.begin() + count * (share + 1) / num_shares};
}

ProcessorShare share_processors(int processors, std::int64_t sharers) {
  const std::int64_t threads = std::max<std::int64_t>(1, processors / sharers);
  return {
      .threads = static_cast<int>(threads),
      .processors_per_thread = std::min(1.0, static_cast<double>(processors) / static_cast<double>(sharers * threads))};
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

std::string boot_id() {
  return first_line("/proc/sys/kernel/random/boot_id").value_or("");
}

std::optional<std::uint64_t> process_start_ticks(std::int64_t pid) {
  const auto line = first_line(fmt::format("/proc/{}/stat", pid));
  if (!line) return std::nullopt;
  // "PID (NAME) STATE ...": the name may hold spaces and brackets, so counting begins behind its last bracket. The
  // start time is field 22 of proc(5), the 20th from the state on.
  const std::size_t bracket = line->rfind(')');
  if (bracket == std::string::npos || bracket + 2 >= line->size()) return std::nullopt;
  const auto fields = split_text(std::string_view(*line).substr(bracket + 2), ' ');
  if (fields.size() < 20 || fields[0] == "Z" || fields[0] == "X") return std::nullopt;
  return parse_number<std::uint64_t>(fields[19]);
}

std::string pid_namespace() {
  return namespace_of_kind("pid");
}

std::string network_namespace() {
  return namespace_of_kind("net");
}

}  // namespace scaletrain
