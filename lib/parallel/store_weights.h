// Internal to the parameter store: the master weights of a rank, whole or as a shard, and the handles layers see.
// Gathers what is sharded into staging, a few units at a time, and keeps it there until the place is needed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "comm/communicator.h"
#include "parallel/store_memory.h"

namespace scaletrain {

class StoreWeights {
 public:
  // All must outlive this. data: null where there is one replica, or no communication.
  StoreWeights(Backend& backend, const ShardLayout& layout, const StoreMemory& memory, std::span<const UnitPlace> units,
               Communicator* data);
  ~StoreWeights();
  StoreWeights(const StoreWeights&) = delete;
  StoreWeights& operator=(const StoreWeights&) = delete;

  void prefetch(Stream& stream, int unit);
  const UnitWeights& acquire(Stream& stream, int unit);
  void release(int unit);
  void updated(Stream& stream);
  void values_changed();
  // Waits for every gather that is under way.
  void settle();

  // The flat buffer's memory, or the shard's.
  const Buffer& masters(int buffer) const { return masters_[static_cast<std::size_t>(buffer)]; }
  // This rank's piece of a segment.
  View piece(int segment) const;
  std::uint64_t bytes() const;
  std::uint64_t packed_bytes() const;

 private:
  struct UnitState {
    const UnitPlace* place = nullptr;
    bool needs_staging = false;  // sharded, with segments of its own
    int staging = -1;            // which staging buffer has its segments
    int acquired = 0;
    bool is_current = false;  // the handles point to compute forms of the current values
    UnitWeights handles;
  };
  struct SegmentState {
    std::byte* data = nullptr;  // all of its values, or where they are being gathered; null: not there
    bool gathering = false;
    Ticket gather;
    int acquired = 0;  // units
  };
  struct Staging {
    Buffer memory;
    int unit = -1;
    bool claimed = false;  // prefetched and not acquired since
    std::uint64_t last_use = 0;
  };

  UnitState& state(int unit);
  bool make_resident(Stream& stream, UnitState& unit, bool may_evict_claimed);
  Staging* find_staging(bool may_evict_claimed);
  void evict(Staging& staging);
  void begin_gather(Stream& stream, int segment, std::byte* into);
  void refresh(Stream& stream, UnitState& unit);
  void drop_packed(const UnitPlace& place);

  Backend& backend_;
  const StoreMemory& memory_;
  Communicator* data_;
  std::vector<Buffer> masters_;
  Buffer shared_;
  std::vector<Staging> staging_;
  std::vector<SegmentState> segments_;
  std::map<int, UnitState> units_;
  std::uint64_t clock_ = 0;
  // Compute forms of the current values by place: two units that share a tied tensor share its form too.
  std::map<std::pair<int, std::int64_t>, std::unique_ptr<PackedWeight>> packed_;
  alignas(buffer_alignment) std::byte nothing_[buffer_alignment]{};  // where matrices without elements point
};

}  // namespace scaletrain
