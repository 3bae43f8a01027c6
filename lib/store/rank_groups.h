// A rank's communicators, one for each group it is in (parallel/mesh/groups.h), and the sum of a few numbers over all
// ranks.
#pragma once

#include <array>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "parallel/mesh/groups.h"
#include "store/group_call.h"

namespace scaletrain {

using CommunicatorFactory = std::function<std::unique_ptr<Communicator>(const GroupSpec&)>;

// One rank's communicators.
class RankGroups {
 public:
  // Null where there is no group.
  Communicator* find(GroupKind kind) const { return groups_[static_cast<std::size_t>(kind)].get(); }
  // Of all of them.
  void abort() const noexcept;

 private:
  friend RankGroups make_groups(const Mesh& mesh, Rank rank, const GroupFacts& facts, const CommunicatorFactory& make);
  std::array<std::unique_ptr<Communicator>, group_kinds.size()> groups_;  // by kind
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

// Made in the order of group_kinds by every rank, since connecting may block until all members have come.
RankGroups make_groups(const Mesh& mesh, Rank rank, const GroupFacts& facts, const CommunicatorFactory& make);

// Sums a few of the host's numbers over all ranks of the mesh, in place: shares of the norm and the loss, token counts,
// votes. Over the tensor, then the data, then the pipeline axis, each in the order of its ranks: all ranks get the same
// bits. By the control groups, where the others reach nothing but a device's memory. Blocks.
void sum_over_world(const RankGroups& groups, std::span<double> numbers);
// Its calls, of a rank that is in the groups of all three axes.
std::vector<GroupCall> world_sum_calls(const GroupFacts& facts, std::int64_t count);

// The same over the tensor and the data axis alone: over the ranks of a pipeline stage, which hold the same tensors. Of
// squares by rows and columns, which may be millions.
void sum_over_stage(const RankGroups& groups, std::span<double> numbers);
std::vector<GroupCall> stage_sum_calls(const GroupFacts& facts, std::int64_t count);

}  // namespace scaletrain
