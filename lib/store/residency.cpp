#include "store/residency.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/numbers/checked.h"

namespace scaletrain {

Residency::Residency(const StoreMemory& memory) : memory_(&memory) {
  if (!memory.zero.shard_parameters) return;
  staging_.resize(static_cast<std::size_t>(memory.num_staging));
  by_use_.resize(staging_.size());
  std::iota(by_use_.begin(), by_use_.end(), 0);
  shared_there_.assign(memory.buckets.size(), 0);
}

Residency::Change Residency::bring(int unit, std::span<const int> buckets, Purpose purpose) {
  Change change;
  if (!memory_->zero.shard_parameters) return change;
  const bool needs_staging =
      std::any_of(buckets.begin(), buckets.end(), [&](int bucket) { return !is_shared(bucket); });
  const bool is_brought = needs_staging && staging_of(unit) < 0;
  if (is_brought) {
    const int place = find_place(purpose);
    if (place < 0) return {.has_place = false, .evicted = -1, .gathers = {}};
    Staging& staging = staging_[static_cast<std::size_t>(place)];
    change.evicted = staging.unit;
    staging = {.unit = unit, .claimed = true, .acquired = false};
    mark_used(place);
  }
  for (const int bucket : buckets) {
    if (is_brought && !is_shared(bucket)) change.gathers.push_back(bucket);
  }
  for (const int bucket : buckets) {
    if (!is_shared(bucket) || shared_there_[static_cast<std::size_t>(bucket)] != 0) continue;
    shared_there_[static_cast<std::size_t>(bucket)] = 1;
    change.gathers.push_back(bucket);
  }
  return change;
}

void Residency::acquire(int unit) {
  const int place = staging_of(unit);
  if (place < 0) return;
  staging_[static_cast<std::size_t>(place)].claimed = false;
  staging_[static_cast<std::size_t>(place)].acquired = true;
  mark_used(place);
}

void Residency::release(int unit) {
  if (const int place = staging_of(unit); place >= 0) staging_[static_cast<std::size_t>(place)].acquired = false;
}

void Residency::clear() {
  for (Staging& staging : staging_) {
    SCALETRAIN_CHECK(!staging.acquired);
    staging = Staging();
  }
  std::iota(by_use_.begin(), by_use_.end(), 0);
  std::fill(shared_there_.begin(), shared_there_.end(), char{0});
}

int Residency::staging_of(int unit) const {
  const auto found =
      std::find_if(staging_.begin(), staging_.end(), [unit](const Staging& staging) { return staging.unit == unit; });
  return found == staging_.end() ? -1 : narrow<int>(found - staging_.begin());
}

int Residency::find_place(Purpose purpose) const {
  const auto first_of = [&](auto is_wanted) {
    for (const int index : by_use_) {
      if (is_wanted(staging_[static_cast<std::size_t>(index)])) return index;
    }
    return -1;
  };
  int place = first_of([](const Staging& staging) { return staging.unit < 0; });
  if (place < 0) place = first_of([](const Staging& staging) { return !staging.acquired && !staging.claimed; });
  if (place < 0 && purpose == Purpose::acquire)
    place = first_of([](const Staging& staging) { return !staging.acquired; });
  return place;
}

void Residency::mark_used(int staging) {
  by_use_.erase(std::find(by_use_.begin(), by_use_.end(), staging));
  by_use_.push_back(staging);
}

std::vector<int> gathered_after_update(const StoreMemory& memory) {
  std::vector<int> buckets;
  if (!memory.zero.shard_optimizer || memory.zero.shard_parameters) return buckets;
  for (int index = 0; index < narrow<int>(memory.buckets.size()); ++index)
    if (memory.buckets[static_cast<std::size_t>(index)].trained) buckets.push_back(index);
  return buckets;
}

bool is_gathered_after_load(const StoreMemory& memory, int bucket) {
  const int buffer = memory.buckets[static_cast<std::size_t>(bucket)].bucket.buffer;
  return memory.has_own_masters(buffer) && memory.shards_masters(buffer) && !memory.zero.shard_parameters;
}

}  // namespace scaletrain
