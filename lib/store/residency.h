// Internal to the parameter store: which units' weights are in staging when parameters are sharded, which unit gets a
// place next and which has to leave. Pure, so that the store, which gathers, and the plan, which counts the gathers,
// follow one policy.
//
// A unit stays in its staging buffer after its release until the place is needed: the backward begins with what the
// forward gathered last. Places go in this order: empty ones, the least recently used, and only for an acquire those
// that were prefetched and not acquired since. Buckets that several units of the rank share have a place of their own
// and stay once gathered.
#pragma once

#include <compare>
#include <span>
#include <vector>

#include "store/store_memory.h"

namespace scaletrain {

class Residency {
 public:
  // memory must outlive this. Where parameters are not sharded everything is there.
  explicit Residency(const StoreMemory& memory);

  enum class Purpose { prefetch, acquire };
  struct Change {
    bool has_place = true;
    int evicted = -1;          // the unit whose own buckets are no longer there; -1: none
    std::vector<int> gathers;  // buckets that must be gathered for the unit to be there
  };
  // Brings a unit, which uses these buckets, into staging unless it is there. Without a place nothing changes.
  Change bring(int unit, std::span<const int> buckets, Purpose purpose);
  // Of a unit that is there: the first of nested acquires and the last of nested releases.
  void acquire(int unit);
  void release(int unit);
  // Nothing is there any more. No unit may be acquired.
  void clear();

  // The staging buffer that has the unit's own buckets; -1: none has.
  int staging_of(int unit) const;

  // Equal if all that follows is equal.
  auto operator<=>(const Residency& other) const {
    if (const auto order = staging_ <=> other.staging_; order != 0) return order;
    if (const auto order = by_use_ <=> other.by_use_; order != 0) return order;
    return shared_there_ <=> other.shared_there_;
  }
  bool operator==(const Residency& other) const { return (*this <=> other) == 0; }

 private:
  struct Staging {
    int unit = -1;
    bool claimed = false;  // prefetched and not acquired since
    bool acquired = false;
    auto operator<=>(const Staging&) const = default;
  };

  bool is_shared(int bucket) const { return memory_->buckets[static_cast<std::size_t>(bucket)].shared; }
  int find_place(Purpose purpose) const;
  void mark_used(int staging);

  const StoreMemory* memory_;
  std::vector<Staging> staging_;
  std::vector<int> by_use_;         // indices of staging_, the least recently used first
  std::vector<char> shared_there_;  // by bucket
};

// The buckets that are gathered when the optimizer has changed its shards of weights that ranks hold unsharded.
std::vector<int> gathered_after_update(const StoreMemory& memory);
// Whether this one is when all masters have new values: its compute weights are made of them, of a shard where ranks
// hold them whole.
bool is_gathered_after_load(const StoreMemory& memory, int bucket);

}  // namespace scaletrain
