// What a start needs of its host beyond memory: threads, which the system counts as processes, and descriptors; and
// whether the host's limits leave as much. A limit that is met in the middle of a run ends workers alike, start after
// start; here it is found, and named, before any is started.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "host/thread_limits.h"
#include "parallel/mesh/groups.h"

namespace scaletrain {

// Of one process, at the most; tests/process/limits_test holds them against running ones.
struct ProcessNeeds {
  std::int64_t threads = 1;  // the main one included
  std::int64_t descriptors = 0;
};

// kernel_threads: that compute, the main one included.
ProcessNeeds worker_needs(const Mesh& mesh, Rank rank, const GroupFacts& facts, int kernel_threads);
// Of an agent with so many workers; served: the ranks of the world if it serves their rendezvous, else 0.
ProcessNeeds agent_needs(std::int64_t workers, std::int64_t served);

// Of the processes of a run that one start brings to this host.
struct HostNeeds {
  std::int64_t workers = 0;
  ProcessNeeds worker{};  // of the one that needs most
  std::int64_t agents = 1;
  ProcessNeeds agent{};
  std::int64_t running = 0;  // threads of theirs that run already, and are counted among those in use
  std::int64_t threads() const;
};

// Why the start would fail: the limit that leaves least, what is needed, what helps. Nothing: all have room.
std::optional<std::string> beyond_limits(const HostNeeds& needs, const std::vector<ThreadLimit>& threads,
                                         std::optional<std::uint64_t> descriptors);

}  // namespace scaletrain
