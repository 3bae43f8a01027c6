// Internal to the parameter store: the master and compute weights of a rank, unsharded or its shards, and the handles
// layers see. Gathers what is sharded into staging, a few units at a time, as residency.h says.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "comm/communicator.h"
#include "store/offload_staging.h"
#include "store/residency.h"
#include "store/store_memory.h"

namespace scaletrain {

class StoreWeights {
 public:
  // All but work must outlive this. data: null where there is one replica, or no communication. work: as in the store's
  // options.
  StoreWeights(Backend& backend, const ShardLayout& layout, const StoreMemory& memory, std::span<const UnitPlace> units,
               Communicator* data, WorkCount* work);
  ~StoreWeights();
  StoreWeights(const StoreWeights&) = delete;
  StoreWeights& operator=(const StoreWeights&) = delete;

  void prefetch(Stream& stream, int unit);
  const UnitWeights& acquire(Stream& stream, int unit);
  void release(int unit);
  void updated(Stream& stream);
  // staging: where masters lie in the host's memory; else null.
  void values_changed(Stream& stream, OffloadStaging* staging);
  // Orders the stream behind every gather that is under way.
  void settle(Stream& stream);

  // The flat buffer's memory, or the shard's.
  const Buffer& masters(int buffer) const {
    return (memory_.has_own_masters(buffer) ? masters_ : compute_)[static_cast<std::size_t>(buffer)];
  }
  const Buffer& compute(int buffer) const { return compute_[static_cast<std::size_t>(buffer)]; }
  // This rank's shard of a bucket.
  View master_shard(int bucket) const;
  View compute_shard(int bucket) const;
  std::uint64_t bytes() const;

 private:
  struct UnitState {
    const UnitPlace* place = nullptr;
    int acquired = 0;
    bool is_current = false;  // the handles point to the current values and their packed forms
    UnitWeights handles;
  };
  struct BucketState {
    std::byte* data = nullptr;  // all of its values, or where they are being gathered; null: not there
    bool gathering = false;
    Ticket gather;
    int acquired = 0;  // units
  };

  UnitState& state(int unit);
  // Of memory that holds whole buckets, or this rank's shards one after the other.
  View shard_in(const Buffer& memory, bool holds_shards, const Bucket& bucket, DType dtype) const;
  bool make_resident(Stream& stream, const UnitState& unit, Residency::Purpose purpose);
  void evict(Stream& stream, UnitState& unit);
  void begin_gather(Stream& stream, int bucket, std::byte* into);
  void refresh(Stream& stream, UnitState& unit);
  void forget_values();
  void convert_masters(Stream& stream, int bucket, OffloadStaging* staging);

  Backend& backend_;
  const StoreMemory& memory_;
  Communicator* data_;
  Residency residency_;
  std::vector<Buffer> compute_;
  std::vector<Buffer> masters_;  // empty where they are the compute weights
  Buffer shared_;
  std::vector<Buffer> staging_;
  std::vector<BucketState> buckets_;
  std::map<int, UnitState> units_;
  struct PackedForm {
    Region memory;
    std::unique_ptr<PackedWeight> form;  // of the current values; null: not made since they changed
  };
  Buffer packed_memory_;
  std::map<std::pair<int, std::int64_t>, PackedForm> packed_;        // by bucket and offset
  alignas(buffer_alignment) std::byte nothing_[buffer_alignment]{};  // where matrices without elements point
};

}  // namespace scaletrain
