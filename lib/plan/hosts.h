// Ranks on hosts: which groups stay inside one, and how much memory the ranks of one need. Pure arithmetic; ranks fill
// the hosts in their order.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "parallel/mesh/groups.h"
#include "parallel/mesh/mesh.h"
#include "plan/run_plan.h"

namespace scaletrain {

// Devices of a common host; few have more.
inline constexpr std::int64_t common_host = 8;

struct HostPlacement {
  enum class Basis {
    one_host,    // all ranks on one
    configured,  // launch.ranks_per_node
    // Nothing is known: a tensor group each, which is what ranks are ordered for, or as large a part of one as common
    // hosts hold.
    assumed,
  };
  Basis basis = Basis::one_host;
  std::int64_t ranks_per_host = 1;
};
HostPlacement place_on_hosts(const Config& config, const Mesh& mesh, bool all_on_one);

enum class GroupReach { inside_host, partly_inside, across_hosts };
std::string_view to_text(GroupReach reach);
// Of all groups of the kind.
GroupReach reach_of(GroupKind kind, const Mesh& mesh, const GroupFacts& facts, std::int64_t ranks_per_host);

// How many ranks of each stage are among the `count` from `first` on.
std::map<std::int64_t, std::int64_t> ranks_by_stage(const Mesh& mesh, std::int64_t first, std::int64_t count);

// Of the host whose ranks need most together. bytes_of_rank: of one rank, by stage; rank 0 needs `more` than its
// stage's.
std::uint64_t most_memory_of_a_host(const Mesh& mesh, const std::vector<std::uint64_t>& bytes_of_rank,
                                    std::int64_t ranks_per_host, std::uint64_t more);

// The plan of one rank, with what rank 0 needs for the manifest of a checkpoint (save_size.h).
MemoryPlan memory_of_rank(const PhasePlan& phase, Rank rank, std::size_t backend_workspace);

// What the ranks [first, first + count) need together. The ranks of a stage differ by padding at most, so that the
// first one stands for all; but rank 0, where it needs more, is a part of its own.
struct HostMemory {
  struct Part {
    std::int64_t stage = 0;
    std::int64_t ranks = 0;
    MemoryPlan each;
  };
  std::vector<Part> parts;
  std::uint64_t total() const;
  std::uint64_t total_of_host() const;  // of what lies in the host's memory wherever the ranks compute
};
HostMemory memory_of_ranks(const PhasePlan& phase, std::int64_t first, std::int64_t count,
                           std::size_t backend_workspace);

}  // namespace scaletrain
