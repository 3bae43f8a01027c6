#include "host/thread_limits.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <string_view>

#include "host/machine.h"
#include "host/proc_text.h"

namespace scaletrain {
namespace {

std::optional<std::uint64_t> first_number(const std::string& path) {
  std::ifstream in(path);
  std::uint64_t number = 0;
  if (in >> number) return number;
  return std::nullopt;
}

// Of /proc/PID/status: the first word behind "NAME:".
std::string status_word(const std::string& status, std::string_view name) {
  std::ifstream in(status);
  std::string line;
  while (std::getline(in, line)) {
    if (!line.starts_with(name) || line.size() <= name.size() || line[name.size()] != ':') continue;
    std::istringstream words(line.substr(name.size() + 1));
    std::string word;
    words >> word;
    return word;
  }
  return {};
}

std::uint64_t number_of(const std::string& text, int base = 10) {
  std::uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number, base);
  return number;
}

// The kernel counts no processes of the machine's root and of those with one of two capabilities; inside a user
// namespace neither is had.
bool is_exempt(const std::string& proc) {
  std::ifstream in(proc + "/self/uid_map");
  std::uint64_t inside = 0;
  std::uint64_t outside = 0;
  if (in >> inside >> outside && (inside != 0 || outside != 0)) return false;
  constexpr std::uint64_t admin = std::uint64_t{1} << 21;
  constexpr std::uint64_t resource = std::uint64_t{1} << 24;
  const std::string status = proc + "/self/status";
  return status_word(status, "Uid") == "0" || (number_of(status_word(status, "CapEff"), 16) & (admin | resource)) != 0;
}

std::uint64_t threads_of_user(const std::string& proc) {
  const std::string user = status_word(proc + "/self/status", "Uid");
  std::uint64_t threads = 0;
  for (const std::string& process : names_in(proc)) {
    if (process.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string status = fmt::format("{}/{}/status", proc, process);
    if (status_word(status, "Uid") == user) threads += number_of(status_word(status, "Threads"));
  }
  return threads;
}

void add_user_limit(const std::string& proc, std::vector<ThreadLimit>& limits) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NPROC, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || is_exempt(proc)) return;
  limits.push_back({.name = "RLIMIT_NPROC (ulimit -u) of this user",
                    .remedy = "raise it (ulimit -u; limits.conf; LimitNPROC= of a systemd unit)",
                    .most = limit.rlim_cur,
                    .used = threads_of_user(proc)});
}

void add_group_limits(const std::string& proc, const std::string& mounts, std::vector<ThreadLimit>& limits) {
  for_each_control_group(proc + "/self/cgroup", mounts, "pids", [&](const std::string& folder, bool /*is_version_2*/) {
    const auto most = first_number(folder + "/pids.max");  // "max": no number
    const auto used = first_number(folder + "/pids.current");
    if (!most || !used) return;
    limits.push_back({.name = fmt::format("pids.max of the control group {}", folder),
                      .remedy = "raise it (--pids-limit of a container, podPidsLimit of Kubernetes, TasksMax= of a "
                                "systemd unit)",
                      .most = *most,
                      .used = *used});
  });
}

void add_machine_limits(const std::string& proc, std::vector<ThreadLimit>& limits) {
  // "0.00 0.01 0.05 1/345 6789": the number behind the stroke is that of all threads.
  std::ifstream in(proc + "/loadavg");
  std::string word;
  for (int i = 0; i < 4; ++i) in >> word;
  const std::size_t stroke = word.find('/');
  if (!in || stroke == std::string::npos) return;
  const std::uint64_t used = number_of(word.substr(stroke + 1));
  for (const char* const name : {"threads-max", "pid_max"}) {
    const auto most = first_number(fmt::format("{}/sys/kernel/{}", proc, name));
    if (!most) continue;
    limits.push_back({.name = fmt::format("kernel.{} of this machine", name),
                      .remedy = fmt::format("raise it (sysctl kernel.{})", name),
                      .most = *most,
                      .used = used});
  }
}

}  // namespace

std::string met_limit_text(const std::vector<ThreadLimit>& limits) {
  const auto left_of = [](const ThreadLimit& limit) { return limit.most - std::min(limit.most, limit.used); };
  const auto nearest = std::min_element(limits.begin(), limits.end(), [&](const ThreadLimit& a, const ThreadLimit& b) {
    return left_of(a) < left_of(b);
  });
  if (nearest == limits.end()) return "raise the limits on processes and threads (ulimit -u, pids.max)";
  if (left_of(*nearest) == 0)
    return fmt::format("{} allows {}, and all are in use: {}", nearest->name, nearest->most, nearest->remedy);
  return fmt::format("the nearest limit is {}, which allows {}, and {} are in use: {}", nearest->name, nearest->most,
                     nearest->used, nearest->remedy);
}

std::int64_t running_threads(const std::string& proc) {
  return static_cast<std::int64_t>(number_of(status_word(proc + "/self/status", "Threads")));
}

std::vector<ThreadLimit> thread_limits(const std::string& proc, const std::string& mounts) {
  std::vector<ThreadLimit> limits;
  add_user_limit(proc, limits);
  add_group_limits(proc, mounts, limits);
  add_machine_limits(proc, limits);
  return limits;
}

std::optional<std::uint64_t> descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

}  // namespace scaletrain
