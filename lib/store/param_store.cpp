#include "store/param_store.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "store/offload_staging.h"
#include "store/store_gradients.h"
#include "store/store_memory.h"
#include "store/store_weights.h"

namespace scaletrain {

namespace {

// Which of a buffer a rank has.
enum class Extent { nothing, shard, all };

// The ranges of one division of the rank's parameters, and where each parameter's is: at most one, as a shard is
// contiguous.
struct Held {
  std::vector<ParamRange> ranges;
  std::vector<int> of_parameter;  // index into ranges; -1: none

  template <class ExtentOfBuffer>
  Held(const ParamTable& table, const ShardLayout& layout, ExtentOfBuffer extent_of) {
    const auto append = [&](const std::vector<ParamRange>& all, Extent extent) {
      std::copy_if(all.begin(), all.end(), std::back_inserter(ranges),
                   [&](const ParamRange& range) { return extent_of(range.buffer) == extent; });
    };
    append(layout.unsharded_ranges(), Extent::all);
    append(layout.shard_ranges(layout.position().data), Extent::shard);
    of_parameter.assign(table.parameters().size(), -1);
    for (std::size_t index = 0; index < ranges.size(); ++index)
      of_parameter[static_cast<std::size_t>(ranges[index].parameter)] = narrow<int>(index);
    // A copy that shares its owner's place has its owner's values.
    for (std::size_t index = 0; index < table.parameters().size(); ++index) {
      const auto& owner = table.parameters()[index].tied_to;
      if (!owner || of_parameter[index] >= 0 || layout.find(narrow<int>(index)) == nullptr) continue;
      of_parameter[index] = of_parameter[static_cast<std::size_t>(table.index_of(*owner))];
    }
  }
  Held() = default;
};

}  // namespace

bool is_in_blocks(std::int64_t state_block, std::string_view state_name) {
  return state_block > 0 && state_name != average_state_name;
}

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
  Impl(Backend& used_backend, const ParamTable& table_in, const ShardLayout& layout_in, Options options_in);

  void allocate_states();
  void collect_ranges();
  void add_states(OptimizerRange& range, std::int64_t first, std::int64_t count) const;
  View scales_of(std::size_t buffer, std::size_t state, std::int64_t first, std::int64_t count) const;
  // The held range that has the parameter's; where a part of it begins in the memory of its kind.
  const ParamRange& whole_of(StateKind kind, const ParamRange& range) const;
  std::int64_t place_of(StateKind kind, const ParamRange& range) const;
  DType dtype_of(StateKind kind, int buffer, std::size_t state) const {
    const auto index = static_cast<std::size_t>(buffer);
    return kind == StateKind::optimizer ? memory.state_dtype(index, state) : memory.dtypes[index];
  }
  const Held& held(StateKind kind) const;
  // The memory of a kind over a buffer, and whether it is the shard's.
  const Buffer& memory_of(StateKind kind, int buffer, std::size_t state) const;
  bool is_shard(StateKind kind, int buffer) const;
  View unsharded(StateKind kind, std::string_view name, std::size_t state) const;

  Backend& backend;
  const ParamTable& table;
  const ShardLayout& layout;
  Options options;
  StoreMemory memory;
  std::vector<UnitPlace> units;
  std::optional<StoreWeights> weights;
  std::optional<StoreGradients> gradients;
  std::vector<std::vector<Buffer>> states;  // [state][buffer]
  std::vector<std::vector<Buffer>> scales;  // the same of those in blocks
  std::vector<FactorPlace> factor_places;
  Buffer factors;
  std::vector<OptimizerRange> ranges;
  std::function<void(const OptimizerRange&)> follow;  // empty: nobody follows updates
  Held masters;
  Held updated;                           // what the optimizer works on: gradients and states
  std::optional<OffloadStaging> staging;  // of the state that the host's memory has; last: it waits for its copies
};

ParamStore::Impl::Impl(Backend& used_backend, const ParamTable& table_in, const ShardLayout& layout_in,
                       Options options_in)
    : backend(used_backend),
      table(table_in),
      layout(layout_in),
      options(std::move(options_in)),
      memory(plan_store_memory(table, layout, options)),
      masters(table, layout,
              [this](int buffer) { return memory.shards_masters(buffer) ? Extent::shard : Extent::all; }) {
  options.packed_bytes = [this](const Shape& weight) { return backend.packed_bytes(weight); };
  for (const int unit : layout.units()) units.push_back(place_unit(table, layout, memory, options, unit));
  const bool communicates = options.groups != nullptr && memory.data_degree > 1;
  weights.emplace(backend, layout, memory, units, communicates ? options.groups->find(memory.shard_group) : nullptr,
                  options.work);
  gradients.emplace(backend, layout, memory, units, options.groups);
  if (memory.offload) staging.emplace(backend, memory);
  if (!memory.gradients) {
    updated.of_parameter.assign(table.parameters().size(), -1);
    return;
  }
  updated = Held(table, layout, [this](int buffer) {
    if (layout.buffers()[static_cast<std::size_t>(buffer)].role != ParamRole::trained) return Extent::nothing;
    return memory.zero.shard_optimizer ? Extent::shard : Extent::all;
  });
  allocate_states();
  collect_ranges();
}

void ParamStore::Impl::allocate_states() {
  const auto allocate = [&](std::size_t bytes) {
    Buffer buffer = memory.offload ? backend.allocate_pinned(bytes) : backend.allocate(bytes);
    count_work(options.work);
    return buffer;
  };
  for (std::size_t state = 0; state < memory.num_states; ++state) {
    std::vector<Buffer>& buffers = states.emplace_back(layout.buffers().size());
    std::vector<Buffer>& of_blocks = scales.emplace_back(layout.buffers().size());
    for (std::size_t index = 0; index < buffers.size(); ++index) {
      const FlatBuffer& flat = layout.buffers()[index];
      if (!memory.has_state(narrow<int>(index), state)) continue;
      const std::int64_t elements = memory.zero.shard_optimizer ? flat.shard_elements : flat.num_elements;
      const StateBytes bytes = memory.state_bytes(index, state, elements);
      buffers[index] = allocate(bytes.values);
      if (bytes.scales > 0) of_blocks[index] = allocate(bytes.scales);
    }
  }
  factor_places = scaletrain::factor_places(table, layout);
  if (!factor_places.empty()) factors = allocate(factor_bytes(factor_places, options.dtype));
}

// `count` elements from `first` on of all that a rank holds of a buffer's state, whose range this is.
void ParamStore::Impl::add_states(OptimizerRange& range, std::int64_t first, std::int64_t count) const {
  const auto buffer = static_cast<std::size_t>(range.buffer);
  range.state_block = layout.buffers()[buffer].state_block;
  for (std::size_t state = 0; state < states.size(); ++state) {
    if (!memory.has_state(range.buffer, state)) {
      range.states.emplace_back();
      range.scales.emplace_back();
      continue;
    }
    const DType dtype = memory.state_dtype(buffer, state);
    range.states.push_back(
        states[state][buffer].view(static_cast<std::size_t>(first) * size_of(dtype), dtype, {count}));
    range.scales.push_back(memory.is_in_blocks(buffer, state) ? scales_of(buffer, state, first, count) : View());
  }
}

View ParamStore::Impl::scales_of(std::size_t buffer, std::size_t state, std::int64_t first, std::int64_t count) const {
  SCALETRAIN_CHECK(memory.is_in_blocks(buffer, state));
  const std::int64_t block = layout.buffers()[buffer].state_block;
  return scales[state][buffer].view(static_cast<std::size_t>(div_exact(first, block)) * size_of(memory.dtypes[buffer]),
                                    memory.dtypes[buffer], {div_exact(count, block)});
}

// Unsharded: one range per buffer. Sharded: this rank's shard of each bucket.
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
      if (memory.has_own_masters(index))
        range.compute = weights->compute(index).view(0, memory.compute[static_cast<std::size_t>(index)], shape);
      range.gradient = gradients->gradients(index).view(0, dtype, shape);
      add_states(range, 0, flat.num_elements);
      ranges.push_back(std::move(range));
    }
    return;
  }
  for (int index = 0; index < narrow<int>(memory.buckets.size()); ++index) {
    const BucketPlace& place = memory.buckets[static_cast<std::size_t>(index)];
    const Bucket& bucket = place.bucket;
    if (!place.trained) continue;
    OptimizerRange range;
    range.buffer = bucket.buffer;
    range.first = bucket.first + memory.shard * bucket.shard_elements;
    range.param = weights->master_shard(index);
    if (memory.has_own_masters(bucket.buffer)) range.compute = weights->compute_shard(index);
    range.gradient = gradients->shard(index);
    add_states(range, bucket.shard_first, bucket.shard_elements);
    ranges.push_back(std::move(range));
  }
}

const Held& ParamStore::Impl::held(StateKind kind) const {
  return kind == StateKind::master ? masters : updated;
}

bool ParamStore::Impl::is_shard(StateKind kind, int buffer) const {
  switch (kind) {
    case StateKind::master:
      return memory.shards_masters(buffer);
    case StateKind::gradient:
      return memory.zero.shard_gradients;
    case StateKind::optimizer:
      return memory.zero.shard_optimizer;
  }
  SCALETRAIN_CHECK(false);
}

const Buffer& ParamStore::Impl::memory_of(StateKind kind, int buffer, std::size_t state) const {
  switch (kind) {
    case StateKind::master:
      return weights->masters(buffer);
    case StateKind::gradient:
      return gradients->gradients(buffer);
    case StateKind::optimizer:
      SCALETRAIN_CHECK_LT(state, states.size());
      return states[state][static_cast<std::size_t>(buffer)];
  }
  SCALETRAIN_CHECK(false);
}

View ParamStore::Impl::unsharded(StateKind kind, std::string_view name, std::size_t state) const {
  const int index = table.index_of(name);
  const ParamSpan* span = index < 0 ? nullptr : layout.find(index);
  if (span == nullptr) return {};
  const bool is_unsharded = kind == StateKind::master ? !memory.shards_masters(span->buffer)
                                                      : memory.gradients && !memory.zero.shard_optimizer;
  if (!is_unsharded) return {};
  const Buffer& bytes = memory_of(kind, span->buffer, state);
  if (bytes.data() == nullptr) return {};
  const DType dtype = dtype_of(kind, span->buffer, state);
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

void ParamStore::zero_gradients(Stream& stream, std::int64_t updates) {
  impl_->gradients->zero(stream, updates);
}

void ParamStore::keep_gradients(Stream& stream) {
  impl_->gradients->keep(stream);
}

void ParamStore::add_kept_gradients(Stream& stream) {
  impl_->gradients->add_kept(stream);
}

std::int64_t ParamStore::updates() const {
  return impl_->gradients->updates();
}

void ParamStore::update_ranges(Stream& stream, const std::function<void(const OptimizerRange&)>& update, bool is_last) {
  impl_->weights->settle(stream);  // gathers read what the optimizer is about to write
  const auto update_and_follow = [&](const OptimizerRange& range) {
    update(range);
    if (is_last && impl_->follow) impl_->follow(range);
  };
  if (impl_->staging) return impl_->staging->update(stream, impl_->ranges, update_and_follow);
  for (const OptimizerRange& range : impl_->ranges) update_and_follow(range);
}

void ParamStore::follow_updates(std::function<void(const OptimizerRange&)> follow) {
  impl_->follow = std::move(follow);
}

void ParamStore::updated(Stream& stream) {
  impl_->weights->updated(stream);
}

void ParamStore::values_changed(Stream& stream) {
  impl_->weights->values_changed(stream, impl_->staging ? &*impl_->staging : nullptr);
}

void ParamStore::settle(Stream& stream) {
  impl_->gradients->settle(stream);
  impl_->weights->settle(stream);
  stream.synchronize();
}

std::span<const ParamRange> ParamStore::held(StateKind kind) const {
  return impl_->held(kind).ranges;
}

View ParamStore::values(StateKind kind, const ParamRange& range, std::size_t state) const {
  const HeldValues found = find(kind, range, state);
  return found.buffer.rows(found.first, range.count);
}

const ParamRange& ParamStore::Impl::whole_of(StateKind kind, const ParamRange& range) const {
  const Held& all = held(kind);
  SCALETRAIN_CHECK(range.parameter >= 0 && static_cast<std::size_t>(range.parameter) < all.of_parameter.size());
  const int index = all.of_parameter[static_cast<std::size_t>(range.parameter)];
  SCALETRAIN_CHECK_LE(0, index);
  return all.ranges[static_cast<std::size_t>(index)];
}

std::int64_t ParamStore::Impl::place_of(StateKind kind, const ParamRange& range) const {
  const ParamRange& whole = whole_of(kind, range);
  SCALETRAIN_CHECK_LE(whole.first, range.first);
  SCALETRAIN_CHECK_LE(range.first + range.count, whole.first + whole.count);
  return (is_shard(kind, whole.buffer) ? whole.shard_offset : whole.flat_offset) + (range.first - whole.first);
}

HeldValues ParamStore::find(StateKind kind, const ParamRange& range, std::size_t state) const {
  const int buffer = impl_->whole_of(kind, range).buffer;
  const Buffer& bytes = impl_->memory_of(kind, buffer, state);
  const DType dtype = impl_->dtype_of(kind, buffer, state);
  return {bytes.view(0, dtype, {narrow<std::int64_t>(bytes.size() / size_of(dtype))}), impl_->place_of(kind, range)};
}

View ParamStore::scales(const ParamRange& range, std::size_t state) const {
  const auto buffer = static_cast<std::size_t>(impl_->whole_of(StateKind::optimizer, range).buffer);
  return impl_->scales_of(buffer, state, impl_->place_of(StateKind::optimizer, range), range.count);
}

View ParamStore::factors() const {
  const auto count = narrow<std::int64_t>(impl_->factors.size() / size_of(impl_->options.dtype));
  return count == 0 ? View() : impl_->factors.view(0, impl_->options.dtype, {count});
}

std::span<const FactorPlace> ParamStore::factor_places() const {
  return impl_->factor_places;
}

const FactorPlace& ParamStore::factor_place(int parameter) const {
  const auto& places = impl_->factor_places;
  const auto found = std::find_if(places.begin(), places.end(),
                                  [&](const FactorPlace& place) { return place.parameter == parameter; });
  SCALETRAIN_CHECK(found != places.end());
  return *found;
}

View ParamStore::factors(int parameter) const {
  const FactorPlace& place = factor_place(parameter);
  return factors().rows(place.first, place.rows + place.columns);
}

View ParamStore::master(std::string_view name) const {
  return impl_->unsharded(StateKind::master, name, 0);
}

View ParamStore::gradient(std::string_view name) const {
  return impl_->unsharded(StateKind::gradient, name, 0);
}

View ParamStore::state(std::string_view name, std::size_t state) const {
  SCALETRAIN_CHECK_LT(state, impl_->options.state_names.size());
  return impl_->unsharded(StateKind::optimizer, name, state);
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
Backend& ParamStore::backend() const {
  return impl_->backend;
}

std::uint64_t ParamStore::bytes() const {
  std::uint64_t total = impl_->weights->bytes() + impl_->gradients->bytes();
  for (const auto* of_states : {&impl_->states, &impl_->scales})
    for (const auto& state : *of_states)
      for (const Buffer& buffer : state) total += buffer.size();
  total += impl_->factors.size();
  if (impl_->staging) total += impl_->staging->bytes();
  return total;
}

}  // namespace scaletrain
