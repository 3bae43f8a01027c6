#include "store/store_gradients.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/numbers/checked.h"

namespace scaletrain {

StoreGradients::StoreGradients(Backend& backend, const ShardLayout& layout, const StoreMemory& memory,
                               std::span<const UnitPlace> units, const RankGroups* groups)
    : backend_(backend),
      memory_(memory),
      order_(memory, units),
      groups_(groups),
      data_(groups == nullptr || memory.data_degree == 1 ? nullptr : groups->find(memory.shard_group)),
      gradients_(layout.buffers().size()),
      buckets_(memory.buckets.size()) {
  for (const UnitPlace& unit_place : units) units_[unit_place.unit].place = &unit_place;
  if (!memory.gradients) return;
  const bool sharded = memory.zero.shard_gradients;
  for (std::size_t buffer = 0; buffer < layout.buffers().size(); ++buffer) {
    const FlatBuffer& flat = layout.buffers()[buffer];
    if (flat.role != ParamRole::trained) continue;
    const std::int64_t elements = sharded ? flat.shard_elements : flat.num_elements;
    gradients_[buffer] = backend.allocate(static_cast<std::size_t>(elements) * size_of(memory.dtypes[buffer]));
    if (!memory.second_gradients) continue;
    kept_.resize(layout.buffers().size());
    const std::int64_t read = memory.zero.shard_optimizer ? flat.shard_elements : flat.num_elements;
    kept_[buffer] = backend.allocate(static_cast<std::size_t>(read) * size_of(memory.dtypes[buffer]));
  }
  if (memory.shared_gradients > 0) shared_ = backend.allocate(memory.shared_gradients);
  if (memory.sum_staging > 0) sums_ = backend.allocate(memory.sum_staging);
  for (int copy = 0; copy < memory.num_reduce_staging; ++copy)
    travelling_.push_back(backend.allocate(memory.reduce_staging));
  is_travelling_.resize(travelling_.size());
  if (sharded) {
    staging_.resize(static_cast<std::size_t>(memory.num_staging));
    for (Staging& staging : staging_) staging.memory = backend.allocate(memory.gradient_staging);
  }
  for (int index = 0; index < narrow<int>(buckets_.size()); ++index) {
    const BucketPlace& at = place(index);
    BucketState& bucket = buckets_[static_cast<std::size_t>(index)];
    if (!at.trained || order_.is_staged(index)) continue;
    bucket.data =
        sharded ? shared_.data() + at.gradient_offset
                : gradients(at.bucket.buffer).data() + static_cast<std::size_t>(at.bucket.first) * size_of(at.dtype);
  }
  for (auto& [index, unit] : units_) {
    unit.needs_staging = order_.needs_staging(index);
    for (const MatrixPlace& matrix : unit.place->matrices) {
      if (matrix.trained) unit.handles.entries_.push_back({matrix.name, {}});
    }
    point_handles(unit);
  }
}

// Transfers under way write to the memory that ends here. What they report has nowhere to go.
StoreGradients::~StoreGradients() {
  for (UnderWay& reduction : under_way_) {
    try {
      reduction.ticket.wait();
    } catch (...) {  // NOLINT: a destructor reports nothing
    }
  }
}

StoreGradients::UnitState& StoreGradients::state(int unit) {
  const auto found = units_.find(unit);
  SCALETRAIN_CHECK(found != units_.end());
  return found->second;
}

View StoreGradients::shard(int bucket) const {
  const BucketPlace& at = place(bucket);
  const std::int64_t first =
      memory_.zero.shard_gradients ? at.bucket.shard_first : at.bucket.first + memory_.shard * at.bucket.shard_elements;
  return gradients(at.bucket.buffer)
      .view(static_cast<std::size_t>(first) * size_of(at.dtype), at.dtype, {at.bucket.shard_elements});
}

// Matrices whose accumulators are not there now, or that have not joined, get an empty view.
void StoreGradients::point_handles(UnitState& unit) {
  std::size_t entry = 0;
  for (const MatrixPlace& matrix : unit.place->matrices) {
    if (!matrix.trained) continue;
    View& view = unit.handles.entries_[entry++].gradient;
    std::byte* data = matrix.bucket < 0 ? nothing_ : buckets_[static_cast<std::size_t>(matrix.bucket)].data;
    const bool is_found = data != nullptr && matrix.joins_after <= updates_;
    view = !is_found ? View()
                     : View(data + static_cast<std::size_t>(matrix.offset) * size_of(matrix.dtype), matrix.dtype,
                            matrix.shape, backend_.space());
  }
}

// This rank's shard of a bucket's elements.
View StoreGradients::own_piece(const BucketPlace& at, const View& all) const {
  return all.rows(memory_.shard * at.bucket.shard_elements, at.bucket.shard_elements);
}

int StoreGradients::take_staging(Stream& stream) {
  while (true) {
    for (std::size_t index = 0; index < staging_.size(); ++index) {
      if (staging_[index].in_use) continue;
      staging_[index].in_use = true;
      return narrow<int>(index);
    }
    const bool staging_comes_free = !under_way_.empty();
    SCALETRAIN_CHECK(staging_comes_free && "more units acquired at once than there is staging for gradients");
    complete_first(stream);
  }
}

int StoreGradients::take_travelling(Stream& stream) {
  while (true) {
    const auto free = std::find(is_travelling_.begin(), is_travelling_.end(), char{0});
    if (free != is_travelling_.end()) {
      *free = 1;
      return narrow<int>(free - is_travelling_.begin());
    }
    SCALETRAIN_CHECK(!under_way_.empty());
    complete_first(stream);
  }
}

void StoreGradients::open(Stream& stream, UnitState& unit) {
  unit.staging = take_staging(stream);
  const Staging& staging = staging_[static_cast<std::size_t>(unit.staging)];
  for (const int index : unit.place->buckets) {
    const BucketPlace& at = place(index);
    if (!at.trained || !order_.is_staged(index)) continue;
    std::byte* data = staging.memory.data() + at.gradient_offset;
    buckets_[static_cast<std::size_t>(index)].data = data;
    backend_.run(stream, Fill{.output = View(data, at.dtype, {at.bucket.count}, backend_.space())});
  }
  point_handles(unit);
}

const UnitGradients& StoreGradients::acquire(Stream& stream, int index) {
  SCALETRAIN_CHECK(memory_.gradients);
  UnitState& unit = state(index);
  SCALETRAIN_CHECK(!order_.is_closed(index) && !unit.ends);
  if (unit.acquired == 0 && unit.needs_staging) open(stream, unit);
  ++unit.acquired;
  return unit.handles;
}

void StoreGradients::release(Stream& stream, int index, bool last) {
  UnitState& unit = state(index);
  SCALETRAIN_CHECK_LT(0, unit.acquired);
  unit.ends = unit.ends || last;
  if (--unit.acquired > 0) return;
  const int staging = std::exchange(unit.staging, -1);
  begin(stream, order_.release(index, unit.ends), staging);
  if (!unit.needs_staging) return;
  for (const int bucket : unit.place->buckets)
    if (order_.is_staged(bucket)) buckets_[static_cast<std::size_t>(bucket)].data = nullptr;
  point_handles(unit);
}

// staging: where the staged buckets among them lie.
void StoreGradients::begin(Stream& stream, std::span<const Reduction> due, int staging) {
  for (const Reduction& reduction : due) {
    if (reduction.over == GroupKind::data) {
      reduce_over_replicas(stream, reduction.bucket, order_.is_staged(reduction.bucket) ? staging : -1);
    } else if (reduction.over == GroupKind::copies || reduction.over == GroupKind::tied) {
      sum_result(stream, reduction.over, reduction.bucket);
    } else if (groups_ != nullptr) {
      sum(stream, reduction.sums, groups_->find(reduction.over));
    }
  }
}

void StoreGradients::sum(Stream& stream, std::span<const SumPlace> sums, Communicator* group) {
  if (group == nullptr) return;
  const auto stretch = [&](const SumPlace& at) {
    const DType dtype = place(at.bucket).dtype;
    std::byte* data = buckets_[static_cast<std::size_t>(at.bucket)].data;
    SCALETRAIN_CHECK(data != nullptr);
    return View(data + static_cast<std::size_t>(at.offset) * size_of(dtype), dtype, {at.count}, backend_.space());
  };
  // One type per call: gradients of all buffers have the same.
  const DType dtype = place(sums.front().bucket).dtype;
  const auto each_coalesced = [&](const auto& visit) {
    std::int64_t end = 0;
    for (const SumPlace& at : sums) {
      if (!at.coalesced()) continue;
      SCALETRAIN_CHECK(place(at.bucket).dtype == dtype);
      visit(stretch(at), sums_.view(static_cast<std::size_t>(end) * size_of(dtype), dtype, {at.count}));
      end += at.count;
    }
  };
  each_coalesced(
      [&](const View& gradient, const View& copy) { backend_.run(stream, Copy{.input = gradient, .output = copy}); });
  const std::int64_t count = coalesced_elements(sums);
  std::vector<Ticket> tickets;
  if (count > 0) tickets.push_back(group->all_reduce(stream, sums_.view(0, dtype, {count}), ReduceOp::sum));
  for (const SumPlace& at : sums) {
    if (!at.coalesced()) tickets.push_back(group->all_reduce(stream, stretch(at), ReduceOp::sum));
  }
  for (Ticket& ticket : tickets) ticket.before(stream);
  each_coalesced(
      [&](const View& gradient, const View& copy) { backend_.run(stream, Copy{.input = copy, .output = gradient}); });
}

void StoreGradients::reduce_over_replicas(Stream& stream, int bucket, int staging) {
  const BucketPlace& at = place(bucket);
  std::byte* data = buckets_[static_cast<std::size_t>(bucket)].data;
  const View all(data, at.dtype, {at.bucket.count}, backend_.space());
  if (data_ == nullptr) {
    SCALETRAIN_CHECK(!memory_.zero.shard_optimizer && "sharded gradients need the data group");
    return;
  }
  UnderWay reduction;
  reduction.bucket = bucket;
  reduction.staging = staging;
  reduction.data = data;
  View sent = all;
  if (at.reduce != at.dtype) {
    reduction.travelling = take_travelling(stream);
    sent = travelling_[static_cast<std::size_t>(reduction.travelling)].view(0, at.reduce, {at.bucket.count});
    backend_.run(stream, Copy{.input = all, .output = sent});
  }
  if (memory_.zero.shard_optimizer) {
    const std::vector<std::int64_t> counts(static_cast<std::size_t>(memory_.shards), at.bucket.shard_elements);
    reduction.ticket = data_->reduce_scatter(stream, sent, counts, own_piece(at, sent));
  } else {
    reduction.ticket = data_->all_reduce(stream, sent, ReduceOp::sum);
  }
  under_way_.push_back(std::move(reduction));
  if (staging >= 0) ++staging_[static_cast<std::size_t>(staging)].num_reductions;
}

// As soon as what is under way of it is done.
void StoreGradients::sum_result(Stream& stream, GroupKind over, int bucket) {
  const auto is_awaited = [&](const UnderWay& reduction) { return reduction.bucket == bucket; };
  while (std::any_of(under_way_.begin(), under_way_.end(), is_awaited)) complete_first(stream);
  const BucketPlace& at = place(bucket);
  const View unsharded(buckets_[static_cast<std::size_t>(bucket)].data, at.dtype, {at.bucket.count}, backend_.space());
  UnderWay reduction;
  reduction.bucket = bucket;
  reduction.is_of_result = true;
  reduction.ticket =
      groups_->find(over)->all_reduce(stream, memory_.zero.shard_optimizer ? shard(bucket) : unsharded, ReduceOp::sum);
  under_way_.push_back(std::move(reduction));
}

void StoreGradients::complete_first(Stream& stream) {
  UnderWay& reduction = under_way_.front();
  reduction.ticket.before(stream);
  const BucketPlace& at = place(reduction.bucket);
  if (reduction.travelling >= 0) {
    const auto copy = static_cast<std::size_t>(reduction.travelling);
    const View sum = travelling_[copy].view(0, at.reduce, {at.bucket.count});
    const View all(reduction.data, at.dtype, {at.bucket.count}, backend_.space());
    const bool is_shard = memory_.zero.shard_optimizer;
    backend_.run(stream,
                 Copy{.input = is_shard ? own_piece(at, sum) : sum, .output = is_shard ? own_piece(at, all) : all});
    is_travelling_[copy] = 0;
  }
  if (memory_.zero.shard_gradients && !reduction.is_of_result) {
    const View own = shard(reduction.bucket);
    const View received = own_piece(at, View(reduction.data, at.dtype, {at.bucket.count}, backend_.space()));
    backend_.run(stream, Add{.a = own, .b = received, .output = own});
  }
  if (reduction.staging >= 0) {
    Staging& staging = staging_[static_cast<std::size_t>(reduction.staging)];
    if (--staging.num_reductions == 0) staging.in_use = false;
  }
  under_way_.pop_front();
}

void StoreGradients::finish(Stream& stream, std::span<const int> units) {
  std::vector<char> is_finished(buckets_.size(), 0);
  for (const int index : units) {
    const UnitState& unit = state(index);
    SCALETRAIN_CHECK_EQ(unit.acquired, 0);
    for (const int bucket : unit.place->buckets) is_finished[static_cast<std::size_t>(bucket)] = 1;
  }
  begin(stream, order_.finish(units), -1);
  const auto is_awaited = [&](const UnderWay& reduction) {
    return is_finished[static_cast<std::size_t>(reduction.bucket)] != 0;
  };
  while (std::any_of(under_way_.begin(), under_way_.end(), is_awaited)) complete_first(stream);
}

void StoreGradients::reduce_tied(Stream& stream) {
  if (groups_ == nullptr || groups_->find(GroupKind::tied) == nullptr) return;
  for (const auto& [index, unit] : units_) SCALETRAIN_CHECK_EQ(unit.acquired, 0);
  begin(stream, order_.reduce_tied(), -1);
}

void StoreGradients::zero(Stream& stream, std::int64_t updates) {
  settle(stream);
  const bool is_new_step = updates != std::exchange(updates_, updates);
  for (auto& [index, unit] : units_) {
    SCALETRAIN_CHECK_EQ(unit.acquired, 0);
    unit.ends = false;
    if (is_new_step) point_handles(unit);
  }
  order_.reset();
  for (std::size_t buffer = 0; buffer < gradients_.size(); ++buffer) {
    const DType dtype = memory_.dtypes[buffer];
    if (gradients_[buffer].size() == 0) continue;
    const auto count = narrow<std::int64_t>(gradients_[buffer].size() / size_of(dtype));
    backend_.run(stream, Fill{.output = gradients_[buffer].view(0, dtype, {count})});
  }
  for (int index = 0; index < narrow<int>(buckets_.size()); ++index) {
    const BucketPlace& at = place(index);
    const BucketState& bucket = buckets_[static_cast<std::size_t>(index)];
    if (memory_.zero.shard_gradients && at.shared && bucket.data != nullptr)
      backend_.run(stream, Fill{.output = View(bucket.data, at.dtype, {at.bucket.count}, backend_.space())});
  }
}

// visit(gradient, its place among those kept): whole buffers, or this rank's shard of each bucket.
template <class Visit>
void StoreGradients::for_each_kept(Visit visit) const {
  SCALETRAIN_CHECK(memory_.second_gradients && under_way_.empty());
  if (memory_.zero.shard_optimizer) {
    for (int index = 0; index < narrow<int>(buckets_.size()); ++index) {
      const BucketPlace& at = place(index);
      if (!at.trained || at.bucket.shard_elements == 0) continue;
      const std::size_t first = static_cast<std::size_t>(at.bucket.shard_first) * size_of(at.dtype);
      visit(shard(index),
            kept_[static_cast<std::size_t>(at.bucket.buffer)].view(first, at.dtype, {at.bucket.shard_elements}));
    }
    return;
  }
  for (std::size_t buffer = 0; buffer < kept_.size(); ++buffer) {
    const DType dtype = memory_.dtypes[buffer];
    const auto count = narrow<std::int64_t>(kept_[buffer].size() / size_of(dtype));
    if (count > 0) visit(gradients_[buffer].view(0, dtype, {count}), kept_[buffer].view(0, dtype, {count}));
  }
}

void StoreGradients::keep(Stream& stream) {
  settle(stream);
  for_each_kept(
      [&](const View& gradient, const View& kept) { backend_.run(stream, Copy{.input = gradient, .output = kept}); });
}

void StoreGradients::add_kept(Stream& stream) {
  settle(stream);
  for_each_kept([&](const View& gradient, const View& kept) {
    backend_.run(stream, Add{.a = kept, .b = gradient, .output = gradient});
  });
}

void StoreGradients::settle(Stream& stream) {
  while (!under_way_.empty()) complete_first(stream);
}

std::uint64_t StoreGradients::bytes() const {
  std::uint64_t total = shared_.size() + sums_.size();
  for (const Buffer& buffer : gradients_) total += buffer.size();
  for (const Buffer& buffer : kept_) total += buffer.size();
  for (const Staging& staging : staging_) total += staging.memory.size();
  for (const Buffer& copy : travelling_) total += copy.size();
  return total;
}

}  // namespace scaletrain
