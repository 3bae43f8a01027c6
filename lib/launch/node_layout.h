// How the ranks of a run are spread over nodes, each with an agent of its own: pure arithmetic.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "config/config.h"

namespace scaletrain {

// Of a run on all its nodes.
struct NodeLayout {
  std::int64_t ranks_per_node = 1;
  std::int64_t replica = 1;  // ranks of one replica: tensor times pipeline degree
  std::int64_t data = 1;     // replicas
  std::int64_t world() const { return replica * data; }
};

// launch.ranks_per_node: auto is what the degrees leave for each node; with parallel.data: auto too, one replica per
// node, if it has that many processors. UserError, with the remedy, where degrees and nodes do not fit.
NodeLayout lay_out_nodes(const ParallelConfig& parallel, const LaunchConfig& launch, std::int64_t nodes,
                         std::int64_t processors);

// The ranks of one node: `count` from `first` on.
struct NodeShare {
  std::int64_t node = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool operator==(const NodeShare&) const = default;
};

struct Allotment {
  std::int64_t data = 0;            // replicas
  std::vector<NodeShare> shares{};  // nodes without a rank are left out
};

// The most replicas, none beyond the layout's, that these nodes can carry, filled in their order; nothing if they are
// fewer than min_data.
std::optional<Allotment> allot_ranks(const NodeLayout& layout, const std::vector<std::int64_t>& nodes,
                                     std::int64_t min_data);

}  // namespace scaletrain
