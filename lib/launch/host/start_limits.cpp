#include "launch/host/start_limits.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <sstream>
#include <string_view>

#include "base/text.h"
#include "launch/host/machine.h"
#include "launch/workers/communicators.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

// A worker: the main one, its signals, the channel to the agent, the heartbeat with the one that writes stacks, and the
// one that touches or writes the memory of a checkpoint.
constexpr std::int64_t worker_base_threads = 6;
// Of a world of several: Gloo's loop, and the watch over its waits.
constexpr std::int64_t transport_threads = 2;
// The main one, its signals, the lock, the rendezvous, the coordinator, the link to it, and the end of a dead storage.
constexpr std::int64_t agent_threads = 8;
// Streams, logs, locks, epoll, the channel, the checkpoint and the corpus as far as they are open at one time, and
// connections of the rendezvous.
constexpr std::int64_t worker_base_descriptors = 64;
constexpr std::int64_t agent_base_descriptors = 64;
// A channel, a handle of its process, and while it is started a pipe.
constexpr std::int64_t descriptors_per_worker = 4;
// Of a rank at its rendezvous: one for training, one for what writes checkpoints.
constexpr std::int64_t connections_per_rank = 2;

constexpr std::array<GroupKind, 5> all_kinds{GroupKind::tensor, GroupKind::replication, GroupKind::data,
                                             GroupKind::pipeline, GroupKind::tied};

std::optional<std::uint64_t> first_number(const fs::path& path) {
  std::ifstream in(path);
  std::uint64_t number = 0;
  if (in >> number) return number;
  return std::nullopt;
}

// Of /proc/PID/status: the first word behind "NAME:".
std::string status_word(const fs::path& status, std::string_view name) {
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
bool is_exempt(const fs::path& proc) {
  std::ifstream in(proc / "self/uid_map");
  std::uint64_t inside = 0;
  std::uint64_t outside = 0;
  if (in >> inside >> outside && (inside != 0 || outside != 0)) return false;
  constexpr std::uint64_t admin = std::uint64_t{1} << 21;
  constexpr std::uint64_t resource = std::uint64_t{1} << 24;
  const fs::path status = proc / "self/status";
  return status_word(status, "Uid") == "0" || (number_of(status_word(status, "CapEff"), 16) & (admin | resource)) != 0;
}

std::uint64_t threads_of_user(const fs::path& proc) {
  const std::string user = status_word(proc / "self/status", "Uid");
  std::uint64_t threads = 0;
  std::error_code error;
  for (fs::directory_iterator entry(proc, error); !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const fs::path status = entry->path() / "status";
    if (status_word(status, "Uid") == user) threads += number_of(status_word(status, "Threads"));
  }
  return threads;
}

void add_user_limit(const fs::path& proc, std::vector<ThreadLimit>& limits) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NPROC, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || is_exempt(proc)) return;
  limits.push_back({.name = "RLIMIT_NPROC (ulimit -u) of this user",
                    .remedy = "raise it (ulimit -u; limits.conf; LimitNPROC= of a systemd unit)",
                    .most = limit.rlim_cur,
                    .used = threads_of_user(proc)});
}

void add_group_limits(const fs::path& proc, const fs::path& mounts, std::vector<ThreadLimit>& limits) {
  for_each_control_group(proc / "self/cgroup", mounts, "pids", [&](const fs::path& folder, bool /*is_version_2*/) {
    const auto most = first_number(folder / "pids.max");  // "max": no number
    const auto used = first_number(folder / "pids.current");
    if (!most || !used) return;
    limits.push_back({.name = fmt::format("pids.max of the control group {}", folder.string()),
                      .remedy = "raise it (--pids-limit of a container, podPidsLimit of Kubernetes, TasksMax= of a "
                                "systemd unit)",
                      .most = *most,
                      .used = *used});
  });
}

void add_machine_limits(const fs::path& proc, std::vector<ThreadLimit>& limits) {
  // "0.00 0.01 0.05 1/345 6789": the number behind the stroke is that of all threads.
  std::ifstream in(proc / "loadavg");
  std::string word;
  for (int i = 0; i < 4; ++i) in >> word;
  const std::size_t stroke = word.find('/');
  if (!in || stroke == std::string::npos) return;
  const std::uint64_t used = number_of(word.substr(stroke + 1));
  for (const char* const name : {"threads-max", "pid_max"}) {
    const auto most = first_number(proc / "sys/kernel" / name);
    if (!most) continue;
    limits.push_back({.name = fmt::format("kernel.{} of this machine", name),
                      .remedy = fmt::format("raise it (sysctl kernel.{})", name),
                      .most = *most,
                      .used = used});
  }
}

std::uint64_t left_of(const ThreadLimit& limit) {
  return limit.most > limit.used ? limit.most - limit.used : 0;
}

std::string counted(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace

ProcessNeeds worker_needs(const Mesh& mesh, Rank rank, const GroupFacts& facts, int kernel_threads) {
  // Beside those of the kernels, for a moment, as many that make the initial weights.
  ProcessNeeds needs{.threads = worker_base_threads + 2 * (kernel_threads - 1), .descriptors = worker_base_descriptors};
  if (mesh.world() > 1) needs.threads += transport_threads;
  for (const GroupKind kind : all_kinds) {
    const auto group = group_of(mesh, kind, rank, facts);
    if (!group) continue;
    needs.descriptors += static_cast<std::int64_t>(group->members.size()) - 1;
    if (has_queue(kind)) needs.threads += 1;
  }
  return needs;
}

ProcessNeeds agent_needs(std::int64_t workers, std::int64_t served) {
  return {.threads = agent_threads,
          .descriptors = agent_base_descriptors + descriptors_per_worker * workers + connections_per_rank * served};
}

std::int64_t HostNeeds::threads() const {
  return workers * worker.threads + agents * agent.threads;
}

std::int64_t running_threads(const fs::path& proc) {
  return static_cast<std::int64_t>(number_of(status_word(proc / "self/status", "Threads")));
}

std::vector<ThreadLimit> thread_limits(const fs::path& proc, const fs::path& mounts) {
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

std::optional<std::string> beyond_limits(const HostNeeds& needs, const std::vector<ThreadLimit>& threads,
                                         std::optional<std::uint64_t> descriptors) {
  const auto more = static_cast<std::uint64_t>(std::max<std::int64_t>(0, needs.threads() - needs.running));
  const auto tightest =
      std::min_element(threads.begin(), threads.end(),
                       [](const ThreadLimit& a, const ThreadLimit& b) { return left_of(a) < left_of(b); });
  if (tightest != threads.end() && left_of(*tightest) < more) {
    return fmt::format(
        "this start needs {} processes and threads here ({} of {}, {} of {}), {} of them new, and {} leaves {}: it "
        "allows {}, and {} are in use. What helps: {}; fewer ranks on this host; fewer processors for each (taskset), "
        "and so fewer threads",
        needs.threads(), counted(needs.workers, "worker"), needs.worker.threads, counted(needs.agents, "agent"),
        needs.agent.threads, more, tightest->name, left_of(*tightest), tightest->most, tightest->used,
        tightest->remedy);
  }
  const bool is_worker = needs.worker.descriptors >= needs.agent.descriptors;
  const std::int64_t open = is_worker ? needs.worker.descriptors : needs.agent.descriptors;
  if (descriptors && *descriptors < static_cast<std::uint64_t>(open)) {
    return fmt::format(
        "{} of this run needs {} descriptors ({}), and RLIMIT_NOFILE (ulimit -n) allows {}. What helps: raise its hard "
        "limit (ulimit -Hn; limits.conf; LimitNOFILE= of a systemd unit); {}",
        is_worker ? "a worker" : "an agent", open,
        is_worker ? "it is connected with every other rank of its groups"
                  : "it is connected with every rank that it serves",
        *descriptors, is_worker ? "smaller groups (parallel.data, parallel.tensor, parallel.pipeline)" : "fewer ranks");
  }
  return std::nullopt;
}

}  // namespace scaletrain
