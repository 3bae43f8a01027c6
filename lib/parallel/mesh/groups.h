// Which groups a rank is in, and its communicators for them. There is none of all ranks: every group is a full mesh of
// connections, which a large world cannot afford. What all ranks decide together they sum axis by axis.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "parallel/mesh/mesh.h"

namespace scaletrain {

enum class GroupKind {
  tensor,       // the ranks that share one replica's stage
  replication,  // neighbours within a tensor group that hold the same key/value heads (fewer heads than ranks)
  data,         // the replicas of one shard
  pipeline,     // the stages of one replica
  tied,         // first and last stage, which both hold the tied embedding
};
std::string_view to_text(GroupKind kind);

struct GroupSpec {
  GroupKind kind = GroupKind::tensor;
  std::string name;           // unique in the world, the same for all members: "data.3" is the group of lowest rank 3
  std::vector<Rank> members;  // in the order of the group
  int index = 0;              // of this rank among them
};

struct GroupFacts {
  std::int64_t kv_heads = 1;
  bool tied = false;  // the model ties its embeddings
};

// The group of this kind that `rank` is in; nothing if it would have one member, or the rank is in none (a middle stage
// has no tied group).
std::optional<GroupSpec> group_of(const Mesh& mesh, GroupKind kind, Rank rank, const GroupFacts& facts);

// One rank's communicators; null where there is no group. Constructed in the order of GroupKind by every rank.
struct RankGroups {
  std::unique_ptr<Communicator> tensor, replication, data, pipeline, tied;
  Communicator* find(GroupKind kind) const;
  // Of all of them.
  void abort() const noexcept;
};

// Aborts a rank's communicators if its scope is left by an exception: to be declared behind what waits for transfers
// when it is destroyed, which would otherwise wait for peers that may in turn wait for this rank. They must outlive it.
class AbortOnException {
 public:
  explicit AbortOnException(const RankGroups& groups) : groups_(groups), before_(std::uncaught_exceptions()) {}
  ~AbortOnException() {
    if (std::uncaught_exceptions() > before_) groups_.abort();
  }
  AbortOnException(const AbortOnException&) = delete;
  AbortOnException& operator=(const AbortOnException&) = delete;

 private:
  const RankGroups& groups_;
  int before_;
};

using CommunicatorFactory = std::function<std::unique_ptr<Communicator>(const GroupSpec&)>;
RankGroups make_groups(const Mesh& mesh, Rank rank, const GroupFacts& facts, const CommunicatorFactory& make);

// Sums a few numbers over all ranks of the mesh, in place: shares of the norm and the loss, token counts, votes. Over
// the tensor, then the data, then the pipeline groups, each in the order of its ranks: all ranks get the same bits.
// Blocks.
void sum_over_world(const RankGroups& groups, std::span<double> numbers);

}  // namespace scaletrain
