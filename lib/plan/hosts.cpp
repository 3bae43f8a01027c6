#include "plan/hosts.h"

#include <algorithm>

#include "base/error.h"
#include "plan/save_size.h"

namespace scaletrain {

namespace {

// Groups of a kind lie in blocks of so many neighbouring ranks, and a group reaches over `span` of its block.
struct Extent {
  std::int64_t block = 1;
  std::int64_t span = 1;
};

Extent extent_of(GroupKind kind, const Mesh& mesh, const GroupFacts& facts) {
  const std::int64_t tensor = mesh.degree(Axis::tensor);
  const std::int64_t stage = tensor * mesh.degree(Axis::data);
  switch (kind) {
    case GroupKind::tensor:
    case GroupKind::tensor_control:
      return {tensor, tensor};
    case GroupKind::replication: {
      const std::int64_t replication = std::max<std::int64_t>(1, tensor / facts.kv_heads);
      return {replication, replication};
    }
    case GroupKind::data:
    case GroupKind::data_control:
      return {stage, stage - tensor + 1};
    case GroupKind::shard: {
      const std::int64_t block = tensor * mesh.shards();
      return {block, block - tensor + 1};
    }
    case GroupKind::copies:
      return {stage, stage - tensor * mesh.shards() + 1};
    case GroupKind::pipeline:
    case GroupKind::pipeline_control:
    case GroupKind::tied:
      return {mesh.world(), mesh.world() - stage + 1};
  }
  SCALETRAIN_CHECK(false);
}

// The largest part of it that divides it evenly and that a common host holds.
std::int64_t part_of_group(std::int64_t degree) {
  std::int64_t part = std::min(degree, common_host);
  while (degree % part != 0) --part;
  return part;
}

}  // namespace

HostPlacement place_on_hosts(const Config& config, const Mesh& mesh, bool all_on_one) {
  const auto configured = config.launch.ranks_per_node;
  if (configured && *configured < mesh.world()) return {HostPlacement::Basis::configured, *configured};
  if (all_on_one || configured || mesh.world() == 1) return {HostPlacement::Basis::one_host, mesh.world()};
  return {HostPlacement::Basis::assumed, part_of_group(mesh.degree(Axis::tensor))};
}

std::string_view to_text(GroupReach reach) {
  switch (reach) {
    case GroupReach::inside_host:
      return "inside";
    case GroupReach::partly_inside:
      return "partly";
    case GroupReach::across_hosts:
      return "across";
  }
  SCALETRAIN_CHECK(false);
}

GroupReach reach_of(GroupKind kind, const Mesh& mesh, const GroupFacts& facts, std::int64_t ranks_per_host) {
  const Extent extent = extent_of(kind, mesh, facts);
  if (ranks_per_host >= mesh.world() || ranks_per_host % extent.block == 0) return GroupReach::inside_host;
  return ranks_per_host >= extent.span ? GroupReach::partly_inside : GroupReach::across_hosts;
}

std::map<std::int64_t, std::int64_t> ranks_by_stage(const Mesh& mesh, std::int64_t first, std::int64_t count) {
  const std::int64_t per_stage = mesh.degree(Axis::tensor) * mesh.degree(Axis::data);
  const std::int64_t end = first + count;
  std::map<std::int64_t, std::int64_t> out;
  for (std::int64_t rank = first; rank < end;) {
    const std::int64_t stage = rank / per_stage;
    const std::int64_t next = std::min(end, (stage + 1) * per_stage);
    out[stage] = next - rank;
    rank = next;
  }
  return out;
}

std::uint64_t most_memory_of_a_host(const Mesh& mesh, const std::vector<std::uint64_t>& bytes_of_rank,
                                    std::int64_t ranks_per_host, std::uint64_t more) {
  const std::int64_t world = mesh.world();
  const std::int64_t size = std::min(world, ranks_per_host);
  const std::int64_t stage_size = world / mesh.degree(Axis::pipeline);
  std::uint64_t most = 0;
  const auto consider = [&](std::int64_t host) {
    const std::int64_t first = host * size;
    if (first >= world) return;
    std::uint64_t sum = host == 0 ? more : 0;
    for (const auto& [stage, ranks] : ranks_by_stage(mesh, first, std::min(size, world - first)))
      sum += bytes_of_rank[static_cast<std::size_t>(stage)] * static_cast<std::uint64_t>(ranks);
    most = std::max(most, sum);
  };
  // Hosts between two that hold a stage's first rank hold that stage alone, all alike.
  for (std::int64_t stage = 0; stage < mesh.degree(Axis::pipeline); ++stage) {
    consider(stage * stage_size / size);
    consider(stage * stage_size / size + 1);
  }
  return most;
}

std::uint64_t HostMemory::total() const {
  std::uint64_t sum = 0;
  for (const Part& part : parts) sum += part.each.total() * static_cast<std::uint64_t>(part.ranks);
  return sum;
}

std::uint64_t HostMemory::total_of_host() const {
  std::uint64_t sum = 0;
  for (const Part& part : parts) sum += part.each.total_of_host() * static_cast<std::uint64_t>(part.ranks);
  return sum;
}

MemoryPlan memory_of_rank(const PhasePlan& phase, Rank rank, std::size_t backend_workspace) {
  MemoryPlan memory = phase.memory(rank, backend_workspace);
  if (rank != Rank(0)) return memory;
  if (const std::uint64_t bytes = manifest_memory(save_size(phase)); bytes > 0)
    memory.items.push_back({"checkpoint manifest", bytes, true});
  return memory;
}

HostMemory memory_of_ranks(const PhasePlan& phase, std::int64_t first, std::int64_t count,
                           std::size_t backend_workspace) {
  HostMemory memory;
  for (const auto& [stage, ranks] : ranks_by_stage(phase.mesh, first, count))
    memory.parts.push_back({stage, ranks, phase.memory(phase.mesh.rank_of({.pipeline = stage}), backend_workspace)});
  if (first > 0 || count == 0) return memory;
  MemoryPlan of_first = memory_of_rank(phase, Rank(0), backend_workspace);
  if (of_first.items.size() == memory.parts.front().each.items.size()) return memory;
  if (--memory.parts.front().ranks == 0) memory.parts.erase(memory.parts.begin());
  memory.parts.insert(memory.parts.begin(), {0, 1, std::move(of_first)});
  return memory;
}

}  // namespace scaletrain
