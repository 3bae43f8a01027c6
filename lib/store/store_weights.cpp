#include "store/store_weights.h"

#include <algorithm>

#include "base/error.h"
#include "base/numbers/checked.h"

namespace scaletrain {

StoreWeights::StoreWeights(Backend& backend, const ShardLayout& layout, const StoreMemory& memory,
                           std::span<const UnitPlace> units, Communicator* data, WorkCount* work)
    : backend_(backend), memory_(memory), data_(data), residency_(memory), buckets_(memory.buckets.size()) {
  const bool sharded = memory.zero.shard_parameters;
  for (std::size_t buffer = 0; buffer < layout.buffers().size(); ++buffer) {
    const FlatBuffer& flat = layout.buffers()[buffer];
    const auto bytes_of = [&](bool is_shard, DType dtype) {
      return static_cast<std::size_t>(is_shard ? flat.shard_elements : flat.num_elements) * size_of(dtype);
    };
    compute_.push_back(backend.allocate(bytes_of(sharded, memory.compute[buffer])));
    masters_.emplace_back();
    const auto index = narrow<int>(buffer);
    if (!memory.has_own_masters(index)) continue;
    const std::size_t bytes = bytes_of(memory.shards_masters(index), memory.dtypes[buffer]);
    masters_.back() = memory.offload ? backend.allocate_pinned(bytes) : backend.allocate(bytes);
    count_work(work);
  }
  if (sharded) {
    if (memory.shared_weights > 0) shared_ = backend.allocate(memory.shared_weights);
    for (int i = 0; i < memory.num_staging; ++i) staging_.push_back(backend.allocate(memory.weight_staging));
  } else {
    for (std::size_t index = 0; index < buckets_.size(); ++index) {
      const BucketPlace& place = memory.buckets[index];
      buckets_[index].data =
          compute(place.bucket.buffer).data() + static_cast<std::size_t>(place.bucket.first) * size_of(place.compute);
    }
  }
  const std::vector<PackedPlace> packed =
      place_packed(memory, units, [&backend](const Shape& weight) { return backend.packed_bytes(weight); });
  if (!packed.empty()) packed_memory_ = backend.allocate(packed.back().first + align_up(packed.back().bytes));
  for (const PackedPlace& place : packed)
    packed_[{place.bucket, place.offset}].memory = {packed_memory_.data() + place.first, place.bytes, backend.space()};
  for (const UnitPlace& place : units) {
    UnitState& unit = units_[place.unit];
    unit.place = &place;
    for (const MatrixPlace& matrix : place.matrices) unit.handles.entries_.push_back({matrix.name, {}});
  }
}

// Transfers under way write to the memory that ends here. What they report has nowhere to go.
StoreWeights::~StoreWeights() {
  for (BucketState& bucket : buckets_) {
    try {
      if (bucket.gathering) bucket.gather.wait();
    } catch (...) {  // NOLINT: a destructor reports nothing
    }
  }
}

StoreWeights::UnitState& StoreWeights::state(int unit) {
  const auto found = units_.find(unit);
  SCALETRAIN_CHECK(found != units_.end());
  return found->second;
}

View StoreWeights::shard_in(const Buffer& memory, bool holds_shards, const Bucket& bucket, DType dtype) const {
  const std::int64_t first = holds_shards ? bucket.shard_first : bucket.first + memory_.shard * bucket.shard_elements;
  return memory.view(static_cast<std::size_t>(first) * size_of(dtype), dtype, {bucket.shard_elements});
}

View StoreWeights::master_shard(int bucket) const {
  const BucketPlace& place = memory_.buckets[static_cast<std::size_t>(bucket)];
  const int buffer = place.bucket.buffer;
  return shard_in(masters(buffer), memory_.shards_masters(buffer), place.bucket, place.dtype);
}

View StoreWeights::compute_shard(int bucket) const {
  const BucketPlace& place = memory_.buckets[static_cast<std::size_t>(bucket)];
  return shard_in(compute(place.bucket.buffer), memory_.zero.shard_parameters, place.bucket, place.compute);
}

void StoreWeights::begin_gather(Stream& stream, int bucket, std::byte* into) {
  const BucketPlace& place = memory_.buckets[static_cast<std::size_t>(bucket)];
  BucketState& state = buckets_[static_cast<std::size_t>(bucket)];
  SCALETRAIN_CHECK(data_ != nullptr && "sharded weights need the data group");
  SCALETRAIN_CHECK(!state.gathering);
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(memory_.shards), place.bucket.shard_elements);
  state.data = into;
  state.gather = data_->all_gather(stream, compute_shard(bucket), counts,
                                   View(into, place.compute, {place.bucket.count}, backend_.space()));
  state.gathering = true;
}

// The unit's own buckets leave their staging.
void StoreWeights::evict(Stream& stream, UnitState& unit) {
  SCALETRAIN_CHECK_EQ(unit.acquired, 0);
  for (const int index : unit.place->buckets) {
    if (memory_.buckets[static_cast<std::size_t>(index)].shared) continue;
    BucketState& bucket = buckets_[static_cast<std::size_t>(index)];
    if (bucket.gathering) bucket.gather.before(stream);
    bucket.gathering = false;
    bucket.data = nullptr;
  }
  unit.is_current = false;
}

// Begins the gathers of what is not there; false if there is no place for it.
bool StoreWeights::make_resident(Stream& stream, const UnitState& unit, Residency::Purpose purpose) {
  const Residency::Change change = residency_.bring(unit.place->unit, unit.place->buckets, purpose);
  if (!change.has_place) return false;
  if (change.evicted >= 0) evict(stream, state(change.evicted));
  for (const int index : change.gathers) {
    const BucketPlace& place = memory_.buckets[static_cast<std::size_t>(index)];
    const Buffer& memory =
        place.shared ? shared_ : staging_[static_cast<std::size_t>(residency_.staging_of(unit.place->unit))];
    begin_gather(stream, index, memory.data() + place.weight_offset);
  }
  return true;
}

void StoreWeights::prefetch(Stream& stream, int unit) {
  make_resident(stream, state(unit), Residency::Purpose::prefetch);
}

const UnitWeights& StoreWeights::acquire(Stream& stream, int index) {
  UnitState& unit = state(index);
  if (unit.acquired == 0) {
    const bool staging_is_free = make_resident(stream, unit, Residency::Purpose::acquire);
    SCALETRAIN_CHECK(staging_is_free && "more units acquired at once than there is staging for gathered weights");
    for (const int at : unit.place->buckets) {
      BucketState& bucket = buckets_[static_cast<std::size_t>(at)];
      if (bucket.gathering) bucket.gather.before(stream);
      bucket.gathering = false;
    }
    if (!unit.is_current) refresh(stream, unit);
    for (const int at : unit.place->buckets) ++buckets_[static_cast<std::size_t>(at)].acquired;
    residency_.acquire(index);
  }
  ++unit.acquired;
  return unit.handles;
}

void StoreWeights::release(int index) {
  UnitState& unit = state(index);
  SCALETRAIN_CHECK_LT(0, unit.acquired);
  if (--unit.acquired > 0) return;
  residency_.release(index);
  for (const int at : unit.place->buckets) --buckets_[static_cast<std::size_t>(at)].acquired;
  if (memory_.zero.shard_parameters) unit.is_current = false;
}

void StoreWeights::refresh(Stream& stream, UnitState& unit) {
  for (std::size_t index = 0; index < unit.place->matrices.size(); ++index) {
    const MatrixPlace& matrix = unit.place->matrices[index];
    Weight& weight = unit.handles.entries_[index].weight;
    weight.packed = nullptr;
    if (matrix.bucket < 0) {
      weight.values = View(nothing_, matrix.compute, matrix.shape, backend_.space());
      continue;
    }
    const std::byte* data = buckets_[static_cast<std::size_t>(matrix.bucket)].data;
    weight.values = ConstView(data + static_cast<std::size_t>(matrix.offset) * size_of(matrix.compute), matrix.compute,
                              matrix.shape, backend_.space());
    const auto packed = packed_.find({matrix.bucket, matrix.offset});
    if (packed == packed_.end() || matrix.lookup_only) continue;
    PackedForm& place = packed->second;
    if (!place.form) place.form = backend_.pack(stream, weight.values, place.memory);
    weight.packed = place.form.get();
  }
  unit.is_current = true;
}

// Nothing made or gathered of the values holds any more.
void StoreWeights::forget_values() {
  for (const auto& [index, unit] : units_) SCALETRAIN_CHECK_EQ(unit.acquired, 0);
  for (const BucketState& bucket : buckets_) SCALETRAIN_CHECK(!bucket.gathering);
  if (memory_.zero.shard_parameters) {
    residency_.clear();
    for (BucketState& bucket : buckets_) bucket.data = nullptr;
  }
  for (auto& [index, unit] : units_) unit.is_current = false;
  for (auto& [place, packed] : packed_) packed.form.reset();
}

void StoreWeights::values_changed(Stream& stream, OffloadStaging* staging) {
  forget_values();
  for (int bucket = 0; bucket < narrow<int>(buckets_.size()); ++bucket) {
    if (!memory_.has_own_masters(memory_.buckets[static_cast<std::size_t>(bucket)].bucket.buffer)) continue;
    convert_masters(stream, bucket, staging);
    if (is_gathered_after_load(memory_, bucket))
      begin_gather(stream, bucket, buckets_[static_cast<std::size_t>(bucket)].data);
  }
}

// All that this rank has of a bucket's masters.
void StoreWeights::convert_masters(Stream& stream, int bucket, OffloadStaging* staging) {
  const BucketPlace& place = memory_.buckets[static_cast<std::size_t>(bucket)];
  const int buffer = place.bucket.buffer;
  const auto all = [&](const Buffer& memory, DType dtype) {
    return memory.view(static_cast<std::size_t>(place.bucket.first) * size_of(dtype), dtype, {place.bucket.count});
  };
  const bool is_shard = memory_.shards_masters(buffer);
  OptimizerRange range;
  range.buffer = buffer;
  range.param = is_shard ? master_shard(bucket) : all(masters(buffer), place.dtype);
  range.compute = is_shard ? compute_shard(bucket) : all(compute(buffer), place.compute);
  const auto convert = [&](const OptimizerRange& piece) {
    backend_.run(stream, Copy{.input = piece.param, .output = piece.compute});
  };
  if (staging == nullptr) return convert(range);
  staging->read(stream, {&range, 1}, convert);
}

void StoreWeights::updated(Stream& stream) {
  settle(stream);
  forget_values();
  for (const int index : gathered_after_update(memory_))
    begin_gather(stream, index, buckets_[static_cast<std::size_t>(index)].data);
}

void StoreWeights::settle(Stream& stream) {
  for (BucketState& bucket : buckets_) {
    if (bucket.gathering) bucket.gather.before(stream);
    bucket.gathering = false;
  }
}

std::uint64_t StoreWeights::bytes() const {
  std::uint64_t total = shared_.size() + packed_memory_.size();
  for (const std::vector<Buffer>* buffers : {&compute_, &masters_}) {
    for (const Buffer& buffer : *buffers) total += buffer.size();
  }
  for (const Buffer& staging : staging_) total += staging.size();
  return total;
}

}  // namespace scaletrain
