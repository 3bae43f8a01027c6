// A rank's communicators, one for each group it is in (parallel/mesh/groups.h), and the sum of a few numbers over all
// ranks.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "parallel/mesh/groups.h"
#include "store/group_call.h"

namespace scaletrain {

// One rank's communicators; null where there is no group. Constructed in the order of GroupKind by every rank.
struct RankGroups {
  std::unique_ptr<Communicator> tensor, replication, data, pipeline, tied;
  std::unique_ptr<Communicator> tensor_control, data_control, pipeline_control;
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

// Sums a few of the host's numbers over all ranks of the mesh, in place: shares of the norm and the loss, token counts,
// votes. Over the tensor, then the data, then the pipeline axis, each in the order of its ranks: all ranks get the same
// bits. By the control groups, where the others reach nothing but a device's memory. Blocks.
void sum_over_world(const RankGroups& groups, std::span<double> numbers);
// Its calls, of a rank that is in the groups of all three axes.
std::vector<GroupCall> world_sum_calls(const GroupFacts& facts, std::int64_t count);

}  // namespace scaletrain
