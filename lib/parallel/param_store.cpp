#include "parallel/param_store.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "parallel/store_gradients.h"
#include "parallel/store_memory.h"
#include "parallel/store_weights.h"

namespace scaletrain {

namespace {

Shape shape_of(const Box& box) {
  Shape shape;
  for (const std::int64_t extent : box.extent) shape.append(extent);
  return shape;
}

// The ranges of one division of the rank's rows, and where each row's is: at most one, as a piece is contiguous.
struct Held {
  std::vector<RowRange> ranges;
  std::vector<int> of_row;  // index into ranges; -1: none

  Held(const ParamTable& table, const ShardLayout& layout, bool sharded, bool trained_only) {
    ranges = sharded ? layout.shard_ranges(layout.position().data) : layout.whole_ranges();
    if (trained_only) {
      std::erase_if(ranges, [&](const RowRange& range) {
        return layout.buffers()[static_cast<std::size_t>(range.buffer)].role != ParamRole::trained;
      });
    }
    of_row.assign(table.rows().size(), -1);
    for (std::size_t index = 0; index < ranges.size(); ++index)
      of_row[static_cast<std::size_t>(ranges[index].row)] = narrow<int>(index);
    // A copy that shares its owner's place has its owner's values.
    for (std::size_t row = 0; row < table.rows().size(); ++row) {
      const auto& owner = table.rows()[row].tied_to;
      if (!owner || of_row[row] >= 0 || layout.find(narrow<int>(row)) == nullptr) continue;
      of_row[row] = of_row[static_cast<std::size_t>(table.index_of(*owner))];
    }
  }
  Held() = default;
};

}  // namespace

Weight UnitWeights::find(std::string_view local_name) const {
  for (const Entry& entry : entries_) {
    if (entry.name == local_name) return entry.weight;
  }
  return {};
}

View UnitGradients::find(std::string_view local_name) const {
  for (const Entry& entry : entries_) {
    if (entry.name == local_name) return entry.gradient;
  }
  return {};
}

struct ParamStore::Impl {
  Impl(Backend& backend, const ParamTable& table_in, const ShardLayout& layout_in, Options options_in);

  void allocate_slots(Backend& backend);
  void collect_ranges();
  const Held& held(StateKind kind) const;
  // The memory of a kind over a buffer, and whether it is the shard's.
  const Buffer& memory_of(StateKind kind, int buffer, std::size_t slot) const;
  bool is_shard(StateKind kind) const;
  View whole(StateKind kind, std::string_view row_name, std::size_t slot) const;

  const ParamTable& table;
  const ShardLayout& layout;
  Options options;
  StoreMemory memory;
  std::vector<UnitPlace> units;
  std::optional<StoreWeights> weights;
  std::optional<StoreGradients> gradients;
  std::vector<std::vector<Buffer>> slots;  // [slot][buffer]
  std::vector<OptimizerRange> ranges;
  Held masters;
  Held updated;  // what the optimizer works on: gradients and slots
};

ParamStore::Impl::Impl(Backend& backend, const ParamTable& table_in, const ShardLayout& layout_in, Options options_in)
    : table(table_in),
      layout(layout_in),
      options(std::move(options_in)),
      memory(plan_store_memory(table, layout, options)),
      masters(table, layout, memory.zero.shard_parameters, false) {
  for (const int unit : layout.units()) units.push_back(place_unit(table, layout, memory, options, unit));
  const bool communicates = options.groups != nullptr && memory.data_degree > 1;
  weights.emplace(backend, layout, memory, units, communicates ? options.groups->data.get() : nullptr);
  gradients.emplace(backend, layout, memory, units, options.groups);
  if (!memory.gradients) {
    updated.of_row.assign(table.rows().size(), -1);
    return;
  }
  updated = Held(table, layout, memory.zero.shard_optimizer, true);
  allocate_slots(backend);
  collect_ranges();
}

void ParamStore::Impl::allocate_slots(Backend& backend) {
  for (std::size_t slot = 0; slot < memory.num_slots; ++slot) {
    std::vector<Buffer>& buffers = slots.emplace_back(layout.buffers().size());
    for (std::size_t index = 0; index < buffers.size(); ++index) {
      const FlatBuffer& flat = layout.buffers()[index];
      if (flat.role != ParamRole::trained) continue;
      const std::int64_t elements = memory.zero.shard_optimizer ? flat.shard_elements : flat.num_elements;
      buffers[index] = backend.allocate(static_cast<std::size_t>(elements) * size_of(memory.dtypes[index]));
    }
  }
}

// Whole: one range per buffer. Sharded: this rank's piece of each segment.
void ParamStore::Impl::collect_ranges() {
  if (!memory.zero.shard_optimizer) {
    for (int index = 0; index < narrow<int>(layout.buffers().size()); ++index) {
      const FlatBuffer& flat = layout.buffers()[static_cast<std::size_t>(index)];
      if (flat.role != ParamRole::trained || flat.num_elements == 0) continue;
      const Shape shape{flat.num_elements};
      const DType dtype = memory.dtypes[static_cast<std::size_t>(index)];
      OptimizerRange range;
      range.buffer = index;
      range.param = weights->masters(index).view(0, dtype, shape);
      range.gradient = gradients->gradients(index).view(0, dtype, shape);
      for (const auto& slot : slots) range.slots.push_back(slot[static_cast<std::size_t>(index)].view(0, dtype, shape));
      ranges.push_back(std::move(range));
    }
    return;
  }
  for (int index = 0; index < narrow<int>(memory.segments.size()); ++index) {
    const SegmentPlace& place = memory.segments[static_cast<std::size_t>(index)];
    const Segment& segment = place.segment;
    if (!place.trained) continue;
    OptimizerRange range;
    range.buffer = segment.buffer;
    range.first = segment.first + memory.data_rank * segment.piece;
    range.param = weights->piece(index);
    range.gradient = gradients->piece(index);
    for (const auto& slot : slots)
      range.slots.push_back(slot[static_cast<std::size_t>(segment.buffer)].view(
          static_cast<std::size_t>(segment.shard_first) * size_of(place.dtype), place.dtype, {segment.piece}));
    ranges.push_back(std::move(range));
  }
}

const Held& ParamStore::Impl::held(StateKind kind) const {
  return kind == StateKind::master ? masters : updated;
}

bool ParamStore::Impl::is_shard(StateKind kind) const {
  switch (kind) {
    case StateKind::master:
      return memory.zero.shard_parameters;
    case StateKind::gradient:
      return memory.zero.shard_gradients;
    case StateKind::slot:
      return memory.zero.shard_optimizer;
  }
  SCALETRAIN_CHECK(false);
}

const Buffer& ParamStore::Impl::memory_of(StateKind kind, int buffer, std::size_t slot) const {
  switch (kind) {
    case StateKind::master:
      return weights->masters(buffer);
    case StateKind::gradient:
      return gradients->gradients(buffer);
    case StateKind::slot:
      SCALETRAIN_CHECK_LT(slot, slots.size());
      return slots[slot][static_cast<std::size_t>(buffer)];
  }
  SCALETRAIN_CHECK(false);
}

View ParamStore::Impl::whole(StateKind kind, std::string_view row_name, std::size_t slot) const {
  const int row = table.index_of(row_name);
  const ParamSpan* span = row < 0 ? nullptr : layout.find(row);
  const bool is_held_whole =
      kind == StateKind::master ? !memory.zero.shard_parameters : memory.gradients && !memory.zero.shard_optimizer;
  if (span == nullptr || !is_held_whole) return {};
  const Buffer& bytes = memory_of(kind, span->buffer, slot);
  if (bytes.data() == nullptr) return {};
  const DType dtype = memory.dtypes[static_cast<std::size_t>(span->buffer)];
  return bytes.view(static_cast<std::size_t>(span->offset) * size_of(dtype), dtype, shape_of(span->box));
}

ParamStore::ParamStore(Backend& backend, const ParamTable& table, const ShardLayout& layout, Options options)
    : impl_(std::make_unique<Impl>(backend, table, layout, std::move(options))) {}

ParamStore::~ParamStore() = default;
ParamStore::ParamStore(ParamStore&&) noexcept = default;
ParamStore& ParamStore::operator=(ParamStore&&) noexcept = default;

void ParamStore::prefetch(Stream& stream, int unit) {
  impl_->weights->prefetch(stream, unit);
}

const UnitWeights& ParamStore::acquire(Stream& stream, int unit) {
  return impl_->weights->acquire(stream, unit);
}

void ParamStore::release(int unit) {
  impl_->weights->release(unit);
}

const UnitGradients& ParamStore::acquire_gradients(Stream& stream, int unit) {
  return impl_->gradients->acquire(stream, unit);
}

void ParamStore::release_gradients(Stream& stream, int unit, bool last) {
  impl_->gradients->release(stream, unit, last);
}

void ParamStore::finish_gradients(Stream& stream, std::span<const int> units) {
  impl_->gradients->finish(stream, units);
}

void ParamStore::reduce_tied(Stream& stream) {
  impl_->gradients->reduce_tied(stream);
}

void ParamStore::zero_gradients(Stream& stream) {
  impl_->gradients->zero(stream);
}

std::span<OptimizerRange> ParamStore::optimizer_ranges() {
  impl_->weights->settle();  // gathers read what the optimizer is about to write
  return impl_->ranges;
}

void ParamStore::updated(Stream& stream) {
  impl_->weights->updated(stream);
}

void ParamStore::values_changed() {
  impl_->weights->values_changed();
}

void ParamStore::settle(Stream& stream) {
  impl_->gradients->settle(stream);
  impl_->weights->settle();
  stream.synchronize();
}

std::span<const RowRange> ParamStore::held(StateKind kind) const {
  return impl_->held(kind).ranges;
}

View ParamStore::values(StateKind kind, const RowRange& range, std::size_t slot) const {
  const Held& held = impl_->held(kind);
  SCALETRAIN_CHECK(range.row >= 0 && static_cast<std::size_t>(range.row) < held.of_row.size());
  const int index = held.of_row[static_cast<std::size_t>(range.row)];
  SCALETRAIN_CHECK_LE(0, index);
  const RowRange& all = held.ranges[static_cast<std::size_t>(index)];
  SCALETRAIN_CHECK_LE(all.first, range.first);
  SCALETRAIN_CHECK_LE(range.first + range.count, all.first + all.count);
  const Buffer& bytes = impl_->memory_of(kind, all.buffer, slot);
  const std::int64_t first = (impl_->is_shard(kind) ? all.shard_offset : all.flat_offset) + (range.first - all.first);
  const DType dtype = impl_->memory.dtypes[static_cast<std::size_t>(all.buffer)];
  return bytes.view(static_cast<std::size_t>(first) * size_of(dtype), dtype, {range.count});
}

View ParamStore::master(std::string_view row_name) const {
  return impl_->whole(StateKind::master, row_name, 0);
}

View ParamStore::gradient(std::string_view row_name) const {
  return impl_->whole(StateKind::gradient, row_name, 0);
}

View ParamStore::slot(std::string_view row_name, std::size_t slot) const {
  SCALETRAIN_CHECK_LT(slot, impl_->options.slot_names.size());
  return impl_->whole(StateKind::slot, row_name, slot);
}

const ParamTable& ParamStore::table() const {
  return impl_->table;
}
const ShardLayout& ParamStore::layout() const {
  return impl_->layout;
}
const ParamStore::Options& ParamStore::options() const {
  return impl_->options;
}

std::uint64_t ParamStore::bytes() const {
  std::uint64_t total = impl_->weights->bytes() + impl_->gradients->bytes();
  for (const auto& slot : impl_->slots) {
    for (const Buffer& buffer : slot) total += buffer.size();
  }
  return total;
}

std::uint64_t ParamStore::packed_bytes() const {
  return impl_->weights->packed_bytes();
}

}  // namespace scaletrain
