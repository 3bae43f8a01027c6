#include "launch/coordination/places.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/hash.h"
#include "base/numbers/checked.h"
#include "base/text.h"
#include "host/machine.h"

namespace scaletrain {

PlaceLayout lay_out_nodes(const ParallelConfig& parallel, const LaunchConfig& launch, std::int64_t nodes,
                          std::int64_t processors) {
  SCALETRAIN_CHECK(nodes >= 1);
  PlaceLayout layout;
  layout.replica = checked_mul(parallel.tensor, parallel.pipeline);
  if (!parallel.data) {
    if (!launch.ranks_per_node && layout.replica > processors)
      throw UserError(
          fmt::format("parallel.data: auto is one replica per node, and one of tensor {} x pipeline {} = {} ranks is "
                      "more than the {} processors of this node; set launch.ranks_per_node, or parallel.data",
                      parallel.tensor, parallel.pipeline, layout.replica, processors));
    layout.ranks_per_place = launch.ranks_per_node.value_or(layout.replica);
    const std::int64_t world = checked_mul(nodes, layout.ranks_per_place);
    if (world % layout.replica != 0)
      throw UserError(fmt::format(
          "parallel.data: auto needs a world that tensor {} x pipeline {} = {} divides, but {} with "
          "launch.ranks_per_node: {} are {} ranks",
          parallel.tensor, parallel.pipeline, layout.replica, counted(nodes, "node"), layout.ranks_per_place, world));
    layout.data = world / layout.replica;
    return layout;
  }
  layout.data = *parallel.data;
  const std::int64_t world = checked_mul(layout.replica, layout.data);
  const std::string degrees = fmt::format("parallel: data {} x tensor {} x pipeline {} = {} ranks", layout.data,
                                          parallel.tensor, parallel.pipeline, world);
  if (launch.ranks_per_node) {
    layout.ranks_per_place = *launch.ranks_per_node;
    if (const std::int64_t there = checked_mul(nodes, layout.ranks_per_place); there != world)
      throw UserError(
          fmt::format("{}, but {} with launch.ranks_per_node: {} make {}; change a degree, the number of nodes "
                      "or launch.ranks_per_node, or set parallel.data: auto",
                      degrees, counted(nodes, "node"), layout.ranks_per_place, there));
    return layout;
  }
  if (world % nodes != 0)
    throw UserError(
        fmt::format("{}, which {} nodes do not divide evenly; change a degree or the number of nodes, or set "
                    "parallel.data: auto",
                    degrees, nodes));
  layout.ranks_per_place = world / nodes;
  return layout;
}

std::optional<Allotment> allot_ranks(const PlaceLayout& layout, const std::vector<std::int64_t>& places,
                                     std::int64_t min_data) {
  const std::int64_t room = checked_mul(layout.ranks_per_place, static_cast<std::int64_t>(places.size()));
  Allotment allotment{.data = std::min(layout.data, room / layout.replica)};
  if (allotment.data < std::max<std::int64_t>(1, min_data)) return std::nullopt;
  const std::int64_t world = allotment.data * layout.replica;
  std::int64_t first = 0;
  for (const std::int64_t place : places) {
    const std::int64_t count = std::min(layout.ranks_per_place, world - first);
    if (count == 0) break;
    allotment.shares.push_back({.place = place, .first = first, .count = count});
    first += count;
  }
  return allotment;
}

PlaceMachine own_machine(const std::string& gpus) {
  std::string mask;
  for (const int processor : affinity_processors()) mask += fmt::format("{},", processor);
  const std::string kernel = fmt::format("{}/{}", host_name(), boot_id());
  return {.host = to_hex(hash_text(fmt::format("{}/{}", kernel, network_namespace()))),
          .processors = to_hex(hash_text(fmt::format("{}/{}", kernel, mask))),
          .gpus = gpus.empty() ? "" : to_hex(hash_text(fmt::format("{}/{}", kernel, gpus)))};
}

void find_neighbours(std::vector<PlaceShare>& shares, const std::vector<PlaceMachine>& machines) {
  SCALETRAIN_CHECK_EQ(shares.size(), machines.size());
  std::map<std::string, std::vector<std::int64_t>> on_host;
  std::map<std::string, std::vector<std::int64_t>> on_processors;
  std::map<std::string, std::vector<std::int64_t>> on_gpus;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    for (std::int64_t rank = shares[i].first; rank < shares[i].first + shares[i].count; ++rank) {
      on_host[machines[i].host].push_back(rank);
      on_processors[machines[i].processors].push_back(rank);
      on_gpus[machines[i].gpus].push_back(rank);
    }
  }
  for (std::size_t i = 0; i < shares.size(); ++i) {
    shares[i].on_host = on_host.at(machines[i].host);
    shares[i].on_processors = on_processors.at(machines[i].processors);
    if (!machines[i].gpus.empty()) shares[i].on_gpus = on_gpus.at(machines[i].gpus);
  }
}

}  // namespace scaletrain
