#include "store/store_calls.h"

#include "base/error.h"
#include "base/numbers/checked.h"

namespace scaletrain {

namespace {

std::vector<UnitPlace> place_units(const ParamTable& table, const ShardLayout& layout, const StoreMemory& memory,
                                   const ParamStore::Options& options) {
  std::vector<UnitPlace> units;
  for (const int unit : layout.units()) units.push_back(place_unit(table, layout, memory, options, unit));
  return units;
}

}  // namespace

StoreCalls::StoreCalls(const ParamTable& table, const ShardLayout& layout, const ParamStore::Options& options)
    : memory_(plan_store_memory(table, layout, options)),
      units_(place_units(table, layout, memory_, options)),
      state_{Residency(memory_), ReductionOrder(memory_, units_)} {
  for (std::size_t i = 0; i < units_.size(); ++i) index_of_[units_[i].unit] = i;
}

const UnitPlace& StoreCalls::place_of(int unit) const {
  return units_[index_of_.at(unit)];
}

void StoreCalls::bring(int unit, Residency::Purpose purpose, Calls& calls) {
  for (const int index : state_.residency.bring(unit, place_of(unit).buckets, purpose).gathers)
    calls.push_back(gather_of(index));
}

void StoreCalls::acquire(int unit, Calls& calls) {
  bring(unit, Residency::Purpose::acquire, calls);
  state_.residency.acquire(unit);
}

void StoreCalls::release_gradients(int unit, bool last, Calls& calls) {
  list(state_.reductions.release(unit, last), calls);
}

void StoreCalls::finish_gradients(std::span<const int> units, Calls& calls) {
  list(state_.reductions.finish(units), calls);
}

void StoreCalls::reduce_tied(Calls& calls) {
  list(state_.reductions.reduce_tied(), calls);
}

void StoreCalls::updated(Calls& calls) {
  state_.residency.clear();
  for (const int index : gathered_after_update(memory_)) calls.push_back(gather_of(index));
}

void StoreCalls::values_changed(Calls& calls) {
  state_.residency.clear();
  for (int index = 0; index < narrow<int>(memory_.buckets.size()); ++index)
    if (is_gathered_after_load(memory_, index)) calls.push_back(gather_of(index));
}

// As StoreGradients::begin() goes.
void StoreCalls::list(std::span<const Reduction> due, Calls& calls) const {
  for (const Reduction& reduction : due) {
    if (reduction.over == GroupKind::data) {
      calls.push_back(reduction_over_replicas(reduction.bucket));
    } else if (reduction.over == GroupKind::copies || reduction.over == GroupKind::tied) {
      calls.push_back(sum_of_result(reduction.over, reduction.bucket));
    } else {
      list_sums(reduction, calls);
    }
  }
}

// As StoreGradients::sum() goes.
void StoreCalls::list_sums(const Reduction& reduction, Calls& calls) const {
  GroupCall call{.group = reduction.over,
                 .kind = CollectiveKind::all_reduce,
                 .purpose = CallPurpose::gradients,
                 .dtype = bucket(reduction.sums.front().bucket).dtype};
  call.elements = coalesced_elements(reduction.sums);
  if (call.elements > 0) calls.push_back(call);
  for (const SumPlace& sum : reduction.sums) {
    call.elements = sum.count;
    if (!sum.coalesced()) calls.push_back(call);
  }
}

GroupCall StoreCalls::gather_of(int index) const {
  const BucketPlace& place = bucket(index);
  return {.group = memory_.shard_group,
          .kind = CollectiveKind::all_gather,
          .purpose = CallPurpose::weights,
          .dtype = place.compute,
          .elements = place.bucket.count,
          .own = place.bucket.shard_elements};
}

GroupCall StoreCalls::reduction_over_replicas(int index) const {
  const BucketPlace& place = bucket(index);
  return {.group = memory_.shard_group,
          .kind = memory_.zero.shard_optimizer ? CollectiveKind::reduce_scatter : CollectiveKind::all_reduce,
          .purpose = CallPurpose::gradients,
          .dtype = place.reduce,
          .elements = place.bucket.count,
          .own = place.bucket.shard_elements};
}

GroupCall StoreCalls::sum_of_result(GroupKind over, int index) const {
  const BucketPlace& place = bucket(index);
  return {.group = over,
          .kind = CollectiveKind::all_reduce,
          .purpose = CallPurpose::gradients,
          .dtype = place.dtype,
          .elements = memory_.zero.shard_optimizer ? place.bucket.shard_elements : place.bucket.count};
}

}  // namespace scaletrain
