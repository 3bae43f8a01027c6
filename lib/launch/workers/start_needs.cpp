#include "launch/workers/start_needs.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/file.h"
#include "base/text.h"
#include "launch/workers/communicators.h"

namespace scaletrain {
namespace {

// A worker: the main one, its signals, the channel to the agent, the heartbeat with the one that writes stacks, and the
// one that touches or writes the memory of a checkpoint.
constexpr std::int64_t worker_base_threads = 6;
// Of a world of several: Gloo's loop, and the watch over its waits.
constexpr std::int64_t transport_threads = 2;
// The main one, its signals, the lock, the rendezvous, the coordinator, the link to it, and the end of a dead storage.
constexpr std::int64_t agent_threads = 8;
// Streams, logs, locks, epoll, the channel, the checkpoint as far as it is open at one time, connections of the
// rendezvous, and the files of the corpus that are open at one time.
constexpr std::int64_t worker_base_descriptors = 64 + kMostOpenMaps;
constexpr std::int64_t agent_base_descriptors = 64;
// A channel, a handle of its process, and while it is started a pipe.
constexpr std::int64_t descriptors_per_worker = 4;
// Of a rank at its rendezvous: one for training, one for what writes checkpoints.
constexpr std::int64_t connections_per_rank = 2;

std::uint64_t left_of(const ThreadLimit& limit) {
  return limit.most > limit.used ? limit.most - limit.used : 0;
}

}  // namespace

ProcessNeeds worker_needs(const Mesh& mesh, Rank rank, const GroupFacts& facts, int kernel_threads) {
  // Beside those of the kernels, for a moment, as many that make the initial weights, or touch memory to be pinned.
  ProcessNeeds needs{.threads = worker_base_threads + 2 * (kernel_threads - 1), .descriptors = worker_base_descriptors};
  if (mesh.world() > 1) needs.threads += transport_threads;
  for (const GroupKind kind : group_kinds) {
    const auto group = group_of(mesh, kind, rank, facts);
    if (!group) continue;
    needs.descriptors += static_cast<std::int64_t>(group->members.size()) - 1;
    if (has_queue(kind, facts)) needs.threads += 1;
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
