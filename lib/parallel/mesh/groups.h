// Which groups a rank is in. There is none of all ranks: every group is a full mesh of connections, which a large world
// cannot afford. What all ranks decide together they sum axis by axis (store/rank_groups.h).
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/mesh/mesh.h"

namespace scaletrain {

enum class GroupKind {
  tensor,       // the ranks that share one replica's stage
  replication,  // neighbours within a tensor group that hold the same key/value heads (fewer heads than ranks)
  data,         // the replicas of one part of the model
  shard,        // of a hierarchical mesh: the replicas that share one copy of what ZeRO divides
  copies,       // of a hierarchical mesh: those that hold the same shard
  pipeline,     // the stages of one replica
  tied,         // first and last stage, which both hold the tied embedding
  // The members of an axis' group, for the host's own numbers (store/rank_groups.h).
  tensor_control,
  data_control,
  pipeline_control,
};
// In the order of the enumeration.
inline constexpr std::array group_kinds{
    GroupKind::tensor,       GroupKind::replication,     GroupKind::data, GroupKind::shard,
    GroupKind::copies,       GroupKind::pipeline,        GroupKind::tied, GroupKind::tensor_control,
    GroupKind::data_control, GroupKind::pipeline_control};
static_assert(group_kinds.back() == GroupKind{group_kinds.size() - 1});
// "tensor", "replication", ... "tensor-control".
std::string_view to_text(GroupKind kind);
GroupKind group_kind_of(Axis axis);
GroupKind control_of(Axis axis);
// The group whose ranks ZeRO divides state among: data, or of a hierarchical mesh shard.
GroupKind shard_group_of(const Mesh& mesh);
bool is_control(GroupKind kind);
// Whether who calls such a group waits for the result at once; calls of the others run beside the compute.
bool is_waited_at_once(GroupKind kind);

struct GroupSpec {
  GroupKind kind = GroupKind::tensor;
  std::string name;           // unique in the world, the same for all members: "data.3" is the group of lowest rank 3
  std::vector<Rank> members;  // in the order of the group
  int index = 0;              // of this rank among them
};

struct GroupFacts {
  std::int64_t kv_heads = 1;
  bool tied = false;  // the model ties its embeddings
  // The ranks' groups reach no memory but their devices'. Else host and device share memory, and control groups would
  // be the same once more: there are none.
  bool control = false;
};

// The group of this kind that `rank` is in; nothing if it would have one member, or the rank is in none (a middle stage
// has no tied group).
std::optional<GroupSpec> group_of(const Mesh& mesh, GroupKind kind, Rank rank, const GroupFacts& facts);

}  // namespace scaletrain
