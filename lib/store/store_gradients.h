// Internal to the parameter store: the gradient accumulators of a rank, unsharded or as a shard, and the reductions
// that complete them, in the order of reduction_order.h.
//
// A bucket is what one call reduces, begun as soon as all of it is there. It is reduced once per step, when the last
// unit that uses it is closed, where its accumulators live all step: unsharded gradients, and a tied tensor that two
// units of this rank share. Where units accumulate into staging, it is reduced at every release, and the result is
// added to the shard in the order in which the reductions were begun. All reductions are in place: a reduce-scatter
// leaves the sum in this rank's own shard. A tensor that is tied across stages is reduced over them right behind, while
// other reductions are still under way.
//
// Where several ranks hold each shard, its sum over them follows once a step, in the gradients' own type, when the unit
// after it has closed: by then the reduce-scatter before it is done, or nearly, and the rest of the backward hides it.
//
// Sums over tensor ranks come before the same parameters' reduction over replicas, and what is issued behind them waits
// for them on the stream: the tensor ranks go in step anyway, by the sums of every unit's activations in the same
// queue. To begin a unit's reduction over replicas only when the next unit closes, so that these sums too might be
// under way meanwhile, would cost more than it saves: they are a few norms, biases and shared heads, while the
// reductions are all there is to hide, and under sharded gradients nothing would be left to hide them behind, as their
// staging is needed again one unit later. Without replicas the sums of all units are made together, when they are
// finished.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "store/rank_groups.h"
#include "store/reduction_order.h"
#include "store/store_memory.h"

namespace scaletrain {

class StoreGradients {
 public:
  // All must outlive this. groups: null where there is no communication.
  StoreGradients(Backend& backend, const ShardLayout& layout, const StoreMemory& memory,
                 std::span<const UnitPlace> units, const RankGroups* groups);
  ~StoreGradients();
  StoreGradients(const StoreGradients&) = delete;
  StoreGradients& operator=(const StoreGradients&) = delete;

  const UnitGradients& acquire(Stream& stream, int unit);
  void release(Stream& stream, int unit, bool last);
  void finish(Stream& stream, std::span<const int> units);
  void reduce_tied(Stream& stream);
  void zero(Stream& stream, std::int64_t updates);
  std::int64_t updates() const { return updates_; }
  // As the store's.
  void keep(Stream& stream);
  void add_kept(Stream& stream);
  // Orders the stream behind every reduction that is under way.
  void settle(Stream& stream);

  // The flat buffer's memory, or the shard's; none where the role has no gradient.
  const Buffer& gradients(int buffer) const { return gradients_[static_cast<std::size_t>(buffer)]; }
  // This rank's shard of a bucket: what the optimizer reads.
  View shard(int bucket) const;
  std::uint64_t bytes() const;

 private:
  struct UnitState {
    const UnitPlace* place = nullptr;
    bool needs_staging = false;  // sharded, with buckets of its own
    int staging = -1;            // which staging buffer it accumulates into
    int acquired = 0;
    bool ends = false;  // a release has said that it was the last
    UnitGradients handles;
  };
  struct BucketState {
    std::byte* data = nullptr;  // the accumulators; null: none now
  };
  struct Staging {
    Buffer memory;
    bool in_use = false;
    int num_reductions = 0;  // under way
  };
  struct UnderWay {
    int bucket = 0;
    int staging = -1;
    int travelling = -1;        // which copy in the type of the reduction; -1: none, it travels as it lies
    bool is_of_result = false;  // over copies or stages: of what a reduction over replicas has left in its place
    std::byte* data = nullptr;
    Ticket ticket;
  };

  UnitState& state(int unit);
  const BucketPlace& place(int bucket) const { return memory_.buckets[static_cast<std::size_t>(bucket)]; }
  int take_staging(Stream& stream);
  int take_travelling(Stream& stream);
  View own_piece(const BucketPlace& at, const View& all) const;
  void open(Stream& stream, UnitState& unit);
  void point_handles(UnitState& unit);
  void begin(Stream& stream, std::span<const Reduction> due, int staging);
  void sum(Stream& stream, std::span<const SumPlace> sums, Communicator* group);
  void reduce_over_replicas(Stream& stream, int bucket, int staging);
  void sum_result(Stream& stream, GroupKind over, int bucket);
  void complete_first(Stream& stream);
  template <class Visit>
  void for_each_kept(Visit visit) const;

  Backend& backend_;
  const StoreMemory& memory_;
  ReductionOrder order_;
  const RankGroups* groups_;
  Communicator* data_ = nullptr;
  std::vector<Buffer> gradients_;
  std::vector<Buffer> kept_;  // by flat buffer: what the optimizer reads of it; none without second gradients
  Buffer shared_;
  Buffer sums_;
  std::vector<Staging> staging_;
  std::vector<Buffer> travelling_;
  std::vector<char> is_travelling_;
  std::vector<BucketState> buckets_;
  std::map<int, UnitState> units_;
  std::int64_t updates_ = 0;                                         // of the model before the step under way
  std::deque<UnderWay> under_way_;                                   // in order of issue
  alignas(buffer_alignment) std::byte nothing_[buffer_alignment]{};  // where matrices without elements point
};

}  // namespace scaletrain
