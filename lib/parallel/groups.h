// Which groups a rank is in, and its communicators for them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "parallel/mesh.h"

namespace scaletrain {

enum class GroupKind {
  tensor,    // the ranks that share one replica's stage
  holders,   // neighbours within a tensor group that hold the same key/value heads (fewer heads than ranks)
  data,      // the replicas of one shard
  pipeline,  // the stages of one replica
  tied,      // first and last stage, which both hold the tied embedding
  world,
};
std::string_view to_text(GroupKind kind);

struct GroupSpec {
  GroupKind kind = GroupKind::world;
  std::string name;           // unique in the world, the same for all members: "data.3" is the group of lowest rank 3
  std::vector<Rank> members;  // in the order of the group
  int index = 0;              // of this rank among them
};

struct GroupFacts {
  std::int64_t kv_heads = 1;
  bool tied = false;  // the model ties its embeddings
};

// The group of this kind that `rank` is in; nothing if it would have one member, or the rank is in none (a middle stage
// has no tied group). world and groups of several members only.
std::optional<GroupSpec> group_of(const Mesh& mesh, GroupKind kind, Rank rank, const GroupFacts& facts);

// One rank's communicators; null where there is no group, except world, which is always there (a group of one too).
// Constructed in the order of GroupKind by every rank.
struct RankGroups {
  std::unique_ptr<Communicator> tensor, holders, data, pipeline, tied, world;
  Communicator* find(GroupKind kind) const;
};

using CommunicatorFactory = std::function<std::unique_ptr<Communicator>(const GroupSpec&)>;
RankGroups make_groups(const Mesh& mesh, Rank rank, const GroupFacts& facts, const CommunicatorFactory& make);

}  // namespace scaletrain
