// How the ranks of a run are spread over places, each with an agent of its own: pure arithmetic.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"

namespace scaletrain {

// Of a run at all its places.
struct PlaceLayout {
  std::int64_t ranks_per_place = 1;
  std::int64_t replica = 1;  // ranks of one replica: tensor times pipeline degree
  std::int64_t data = 1;     // replicas
  std::int64_t world() const { return replica * data; }
};

// launch.ranks_per_node: auto is what the degrees leave for each node; with parallel.data: auto too, one replica per
// node, if it has that many processors. UserError, with the remedy, where degrees and nodes do not fit.
PlaceLayout lay_out_nodes(const ParallelConfig& parallel, const LaunchConfig& launch, std::int64_t nodes,
                          std::int64_t processors);

// The ranks of one place: `count` from `first` on.
struct PlaceShare {
  std::int64_t place = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
  // All ranks of its host, ascending, and those of them that run on the same processors: its own and, where each place
  // has one worker, those of other places. Empty: its own.
  std::vector<std::int64_t> on_host{};
  std::vector<std::int64_t> on_processors{};
  std::vector<std::int64_t> on_gpus{};  // the same of those that see the same GPUs
  bool operator==(const PlaceShare&) const = default;
};

struct Allotment {
  std::int64_t data = 0;             // replicas
  std::vector<PlaceShare> shares{};  // places without a rank are left out
};

// The most replicas, none beyond the layout's, that these places can carry, filled in their order; nothing if they are
// fewer than min_data.
std::optional<Allotment> allot_ranks(const PlaceLayout& layout, const std::vector<std::int64_t>& places,
                                     std::int64_t min_data);

// What a place's agent says of the machine that it is on: equal texts stand for the same host (kernel, name and network
// namespace), for the same processors of it, and for the same GPUs that its processes see.
struct PlaceMachine {
  std::string host{};
  std::string processors{};
  std::string gpus{};
};
// gpus: what tells those that are seen here from others; empty: none are used.
PlaceMachine own_machine(const std::string& gpus = {});

// Fills in on_host, on_processors and on_gpus; machines[i] is that of shares[i]'s place.
void find_neighbours(std::vector<PlaceShare>& shares, const std::vector<PlaceMachine>& machines);

}  // namespace scaletrain
