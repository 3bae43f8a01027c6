// Internal to the parameter store: what completes a step's gradients, and in which order: sums over tensor ranks,
// reductions over replicas, a tied tensor's sum over stages. Pure, so that the store, which makes these calls, and the
// plan, which foretells them (store_calls.h), follow one policy. store_gradients.h says why it is this one.
// Reductions over replicas are said to be over `data`, whatever the group that makes them (StoreMemory::shard_group).
#pragma once

#include <compare>
#include <span>
#include <vector>

#include "parallel/mesh/groups.h"
#include "store/store_memory.h"

namespace scaletrain {

// Over tensor ranks or a replication group: stretches, summed by few calls. Over replicas, copies or stages: a bucket.
struct Reduction {
  GroupKind over = GroupKind::data;
  int bucket = -1;
  std::vector<SumPlace> sums;
};

// Short stretches are summed by one call, through a copy, before the others, each by a call of its own.
std::int64_t coalesced_elements(std::span<const SumPlace> sums);

class ReductionOrder {
 public:
  // Both must outlive this.
  ReductionOrder(const StoreMemory& memory, std::span<const UnitPlace> units);

  // Nobody has the unit's accumulators any more; last: for this step. What is due then, in order.
  std::vector<Reduction> release(int unit, bool last);
  // These units get no more in this step, had they their last release or not.
  std::vector<Reduction> finish(std::span<const int> units);
  std::vector<Reduction> reduce_tied();
  // For the next step.
  void reset();

  // Whether its accumulators live in staging of its unit, from acquire to release.
  bool is_staged(int bucket) const { return memory_->zero.shard_gradients && !place(bucket).shared; }
  bool needs_staging(int unit) const;
  bool is_closed(int unit) const { return closed_[index_of(unit)] != 0; }

  // Equal if all that follows is equal.
  auto operator<=>(const ReductionOrder& other) const {
    if (const auto order = closed_ <=> other.closed_; order != 0) return order;
    if (const auto order = in_one_copy_ <=> other.in_one_copy_; order != 0) return order;
    return summed_ <=> other.summed_;
  }
  bool operator==(const ReductionOrder& other) const { return (*this <=> other) == 0; }

 private:
  const BucketPlace& place(int bucket) const { return memory_->buckets[static_cast<std::size_t>(bucket)]; }
  bool is_tied(int bucket) const { return place(bucket).bucket.tied && place(bucket).trained; }
  std::size_t index_of(int unit) const;
  bool is_open(int bucket) const;
  void close(std::size_t unit, std::vector<Reduction>& due);
  void sum_over_copies(std::vector<Reduction>& due);
  void sum_over_tensor_ranks(std::span<const std::size_t> units, std::vector<Reduction>& due) const;

  const StoreMemory* memory_;
  std::span<const UnitPlace> units_;
  std::vector<char> closed_;      // by unit: nothing more is added in this step
  std::vector<char> summed_;      // by unit: over tensor ranks, where there are no replicas
  std::vector<int> in_one_copy_;  // buckets that are reduced within a copy, and not yet over copies
};

}  // namespace scaletrain
