// What a ParamStore asks of its rank's groups, without a store: the same functions, each of which lists the calls that
// ParamStore's would make, in order. Both go by the same policies, residency.h and reduction_order.h. Calls on groups
// that the rank is not in are listed, and not made.
#pragma once

#include <compare>
#include <map>
#include <span>
#include <vector>

#include "store/group_call.h"
#include "store/reduction_order.h"
#include "store/residency.h"

namespace scaletrain {

class StoreCalls {
 public:
  // As a store is right behind an update or a load: nothing that is sharded is gathered.
  StoreCalls(const ParamTable& table, const ShardLayout& layout, const ParamStore::Options& options);
  StoreCalls(const StoreCalls&) = delete;
  StoreCalls& operator=(const StoreCalls&) = delete;

  // What the calls to come depend on besides the questions. Few states occur, however many micro-batches there are.
  struct State {
    Residency residency;
    ReductionOrder reductions;
    auto operator<=>(const State&) const = default;
  };
  const State& state() const { return state_; }
  void set_state(const State& state) { state_ = state; }

  using Calls = std::vector<GroupCall>;
  void prefetch(int unit, Calls& calls) { bring(unit, Residency::Purpose::prefetch, calls); }
  void acquire(int unit, Calls& calls);
  void release(int unit) { state_.residency.release(unit); }
  void zero_gradients() { state_.reductions.reset(); }
  void release_gradients(int unit, bool last, Calls& calls);
  void finish_gradients(std::span<const int> units, Calls& calls);
  void reduce_tied(Calls& calls);
  void updated(Calls& calls);
  void values_changed(Calls& calls);

 private:
  const UnitPlace& place_of(int unit) const;
  void bring(int unit, Residency::Purpose purpose, Calls& calls);
  void list(std::span<const Reduction> due, Calls& calls) const;
  void list_sums(const Reduction& reduction, Calls& calls) const;
  GroupCall gather_of(int bucket) const;
  GroupCall reduction_over_replicas(int bucket) const;
  GroupCall sum_of_result(GroupKind over, int bucket) const;
  const BucketPlace& bucket(int index) const { return memory_.buckets[static_cast<std::size_t>(index)]; }

  StoreMemory memory_;
  std::vector<UnitPlace> units_;
  std::map<int, std::size_t> index_of_;  // into units_
  State state_;
};

}  // namespace scaletrain
