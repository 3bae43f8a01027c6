#include "parallel/mesh/groups.h"

#include <algorithm>

#include "base/error.h"
#include "base/numbers/checked.h"

namespace scaletrain {

namespace {

// Each key/value head is held by degree/kv_heads neighbours; with as many heads as ranks, nobody shares one.
std::vector<Rank> replication_group(const Mesh& mesh, Rank rank, std::int64_t kv_heads) {
  const std::int64_t degree = mesh.degree(Axis::tensor);
  SCALETRAIN_CHECK_LE(std::int64_t{1}, kv_heads);
  if (kv_heads >= degree) return {};
  const std::int64_t size = div_exact(degree, kv_heads);
  const std::vector<Rank> tensor = mesh.group(Axis::tensor, rank);
  const auto first = tensor.begin() + mesh.position_of(rank).tensor / size * size;
  return {first, first + size};
}

std::vector<Rank> tied_of(const Mesh& mesh, Rank rank, bool tied) {
  const std::int64_t last = mesh.degree(Axis::pipeline) - 1;
  const std::int64_t stage = mesh.position_of(rank).pipeline;
  if (!tied || last == 0 || (stage != 0 && stage != last)) return {};
  const std::vector<Rank> pipeline = mesh.group(Axis::pipeline, rank);
  return {pipeline.front(), pipeline.back()};
}

std::vector<Rank> hierarchical_group(const Mesh& mesh, GroupKind kind, Rank rank) {
  if (!mesh.is_hierarchical()) return {};
  const std::vector<Rank> data = mesh.group(Axis::data, rank);
  const std::int64_t own = mesh.position_of(rank).data;
  std::vector<Rank> members;
  for (std::int64_t replica = 0; replica < mesh.degree(Axis::data); ++replica) {
    const bool is_member = kind == GroupKind::shard ? mesh.copy_of(replica) == mesh.copy_of(own)
                                                    : mesh.shard_of(replica) == mesh.shard_of(own);
    if (is_member) members.push_back(data[static_cast<std::size_t>(replica)]);
  }
  return members;
}

std::vector<Rank> members_of(const Mesh& mesh, GroupKind kind, Rank rank, const GroupFacts& facts) {
  switch (kind) {
    case GroupKind::tensor:
      return mesh.group(Axis::tensor, rank);
    case GroupKind::replication:
      return replication_group(mesh, rank, facts.kv_heads);
    case GroupKind::data:
      // Nobody would call the one beside those of shards and copies, where control groups sum the host's numbers.
      return mesh.is_hierarchical() && facts.control ? std::vector<Rank>() : mesh.group(Axis::data, rank);
    case GroupKind::shard:
    case GroupKind::copies:
      return hierarchical_group(mesh, kind, rank);
    case GroupKind::pipeline:
      return mesh.group(Axis::pipeline, rank);
    case GroupKind::tied:
      return tied_of(mesh, rank, facts.tied);
    case GroupKind::tensor_control:
      return facts.control ? mesh.group(Axis::tensor, rank) : std::vector<Rank>();
    case GroupKind::data_control:
      return facts.control ? mesh.group(Axis::data, rank) : std::vector<Rank>();
    case GroupKind::pipeline_control:
      return facts.control ? mesh.group(Axis::pipeline, rank) : std::vector<Rank>();
  }
  SCALETRAIN_CHECK(false);
}

}  // namespace

std::string_view to_text(GroupKind kind) {
  switch (kind) {
    case GroupKind::tensor:
      return "tensor";
    case GroupKind::replication:
      return "replication";
    case GroupKind::data:
      return "data";
    case GroupKind::shard:
      return "shard";
    case GroupKind::copies:
      return "copies";
    case GroupKind::pipeline:
      return "pipeline";
    case GroupKind::tied:
      return "tied";
    case GroupKind::tensor_control:
      return "tensor-control";
    case GroupKind::data_control:
      return "data-control";
    case GroupKind::pipeline_control:
      return "pipeline-control";
  }
  SCALETRAIN_CHECK(false);
}

GroupKind group_kind_of(Axis axis) {
  switch (axis) {
    case Axis::tensor:
      return GroupKind::tensor;
    case Axis::data:
      return GroupKind::data;
    case Axis::pipeline:
      return GroupKind::pipeline;
  }
  SCALETRAIN_CHECK(false);
}

GroupKind control_of(Axis axis) {
  switch (axis) {
    case Axis::tensor:
      return GroupKind::tensor_control;
    case Axis::data:
      return GroupKind::data_control;
    case Axis::pipeline:
      return GroupKind::pipeline_control;
  }
  SCALETRAIN_CHECK(false);
}

GroupKind shard_group_of(const Mesh& mesh) {
  return mesh.is_hierarchical() ? GroupKind::shard : GroupKind::data;
}

bool is_control(GroupKind kind) {
  return kind == GroupKind::tensor_control || kind == GroupKind::data_control || kind == GroupKind::pipeline_control;
}

bool is_waited_at_once(GroupKind kind) {
  return kind == GroupKind::tensor || kind == GroupKind::replication || is_control(kind);
}

std::optional<GroupSpec> group_of(const Mesh& mesh, GroupKind kind, Rank rank, const GroupFacts& facts) {
  std::vector<Rank> members = members_of(mesh, kind, rank, facts);
  if (members.size() < 2) return std::nullopt;
  // All orders above ascend, so the first is the lowest.
  std::string name = std::string(to_text(kind)) + "." + std::to_string(members.front().value());
  const auto self = std::find(members.begin(), members.end(), rank);
  SCALETRAIN_CHECK(self != members.end());
  const int index = narrow<int>(self - members.begin());
  return GroupSpec{.kind = kind, .name = std::move(name), .members = std::move(members), .index = index};
}

}  // namespace scaletrain
