#include "store/store_memory.h"

#include <algorithm>

#include "base/error.h"
#include "base/numbers/checked.h"

namespace scaletrain {

namespace {

// Staging that a rank needs to gather one unit while it computes another.
constexpr int staging_per_rank = 2;

// Copies of gradients that travel in a type of their own: one is filled while another is under way.
constexpr int reduce_staging_per_rank = 2;

// Pieces of state on their way through the device: one comes in, one is updated, one goes back.
constexpr std::int64_t state_staging_per_rank = 3;

// Above this a reduction is bound by its volume and a copy costs more than another call.
constexpr std::int64_t largest_coalesced = 1 << 16;

// The name that layers use: without the unit's prefix.
std::string local_name(std::string_view name, std::string_view unit) {
  const bool is_prefixed = name.size() > unit.size() && name.starts_with(unit) && name[unit.size()] == '.';
  return std::string(is_prefixed ? name.substr(unit.size() + 1) : name);
}

Shape stacked(const Shape& above, const Shape& below) {
  SCALETRAIN_CHECK_EQ(above.num_dims(), below.num_dims());
  Shape out{above[0] + below[0]};
  for (int dim = 1; dim < below.num_dims(); ++dim) {
    SCALETRAIN_CHECK_EQ(above[dim], below[dim]);
    out.append(below[dim]);
  }
  return out;
}

ZeroPolicy effective_policy(const ZeroPolicy& asked, std::int64_t shards) {
  // What the optimizer updates in shards can be held whole, not the reverse.
  SCALETRAIN_CHECK(!asked.shard_gradients || asked.shard_optimizer);
  SCALETRAIN_CHECK(!asked.shard_parameters || asked.shard_optimizer);
  return shards == 1 ? ZeroPolicy{} : asked;
}

bool is_shared(const ShardLayout& layout, int bucket) {
  const int owner = layout.buckets()[static_cast<std::size_t>(bucket)].unit;
  return std::any_of(layout.units().begin(), layout.units().end(), [&](int unit) {
    const std::vector<int> used = layout.buckets_used_by(unit);
    return unit != owner && std::find(used.begin(), used.end(), bucket) != used.end();
  });
}

// Parameters of a unit whose gradient is summed over a tensor group, as stretches: parameters that follow each other in
// table and memory are one. Whether they do is the same on all tensor ranks: it depends on their own sizes only.
std::vector<SumPlace> sums_of(const ParamTable& table, const ShardLayout& layout, int unit, GroupKind kind,
                              bool sequence) {
  const std::int64_t degree = layout.mesh().degree(Axis::tensor);
  std::vector<SumPlace> sums;
  int index = table.units()[static_cast<std::size_t>(unit)].first_parameter - 1;
  int last_index = -2;
  for (const Parameter& parameter : table.parameters_of(unit)) {
    ++index;
    if (parameter.role != ParamRole::trained) continue;
    const bool is_replicated = parameter.split.kind == Split::Kind::replicated;
    const bool is_summed = kind == GroupKind::tensor
                               ? is_replicated && (parameter.tensor_partial || (parameter.sequence_partial && sequence))
                               : !is_replicated && ParamTable::replication_degree(parameter, degree) > 1;
    const ParamSpan* span = layout.find(index);
    if (!is_summed || span->count == 0) continue;
    const int bucket = layout.bucket_at(span->buffer, span->offset);
    const Bucket& place = layout.buckets()[static_cast<std::size_t>(bucket)];
    SCALETRAIN_CHECK(!place.tied);
    const std::int64_t offset = span->offset - place.first;
    if (last_index == index - 1 && sums.back().bucket == bucket && sums.back().offset + sums.back().count == offset) {
      sums.back().count += span->count;
    } else {
      sums.push_back({.bucket = bucket, .offset = offset, .count = span->count});
    }
    last_index = index;
  }
  return sums;
}

std::vector<SumPlace> sums_of(const ParamTable& table, const ShardLayout& layout, const ParamStore::Options& options,
                              int unit, GroupKind kind) {
  if (!options.gradients || layout.mesh().degree(Axis::tensor) == 1) return {};
  return sums_of(table, layout, unit, kind, options.sequence);
}

std::size_t coalesced_bytes(const std::vector<SumPlace>& sums, const StoreMemory& memory) {
  std::size_t bytes = 0;
  for (const SumPlace& sum : sums) {
    if (sum.coalesced())
      bytes +=
          static_cast<std::size_t>(sum.count) * size_of(memory.buckets[static_cast<std::size_t>(sum.bucket)].dtype);
  }
  return bytes;
}

// Lays out the staging of one unit's own buckets, and that of the shared ones.
void place_staging(StoreMemory& memory, const ShardLayout& layout) {
  std::size_t widest_unit = 0;
  std::size_t widest_gradients = 0;
  for (const int unit : layout.units()) {
    std::size_t weights = 0;
    std::size_t gradients = 0;
    for (BucketPlace& place : memory.buckets) {
      if (place.bucket.unit != unit) continue;
      std::size_t& weight_end = place.shared ? memory.shared_weights : weights;
      std::size_t& gradient_end = place.shared ? memory.shared_gradients : gradients;
      place.weight_offset = weight_end;
      place.gradient_offset = gradient_end;
      weight_end += align_up(place.bytes_of(place.compute));
      if (place.trained) gradient_end += align_up(place.bytes_of(place.dtype));
    }
    widest_unit = std::max(widest_unit, weights);
    widest_gradients = std::max(widest_gradients, gradients);
  }
  memory.num_staging = std::min(staging_per_rank, narrow<int>(layout.units().size()));
  memory.weight_staging = memory.zero.shard_parameters ? widest_unit : 0;
  memory.gradient_staging = memory.zero.shard_gradients && memory.gradients ? widest_gradients : 0;
  if (!memory.zero.shard_parameters) memory.shared_weights = 0;
  if (!memory.zero.shard_gradients || !memory.gradients) memory.shared_gradients = 0;
}

// One copy holds any bucket.
void place_reduce_staging(StoreMemory& memory) {
  if (!memory.gradients || memory.data_degree == 1) return;
  int num_buckets = 0;
  for (const BucketPlace& place : memory.buckets) {
    if (!place.trained || place.reduce == place.dtype) continue;
    ++num_buckets;
    memory.reduce_staging = std::max(memory.reduce_staging, align_up(place.bytes_of(place.reduce)));
  }
  memory.num_reduce_staging = std::min(reduce_staging_per_rank, num_buckets);
}

// A piece is as long as the longest stretch that passes at once, up to what the options say: all of a buffer, or a
// bucket's shard.
void place_state_staging(StoreMemory& memory, const ShardLayout& layout, std::int64_t longest) {
  std::vector<std::int64_t> stretches;
  for (const FlatBuffer& flat : layout.buffers())
    if (flat.role == ParamRole::trained && !memory.zero.shard_optimizer) stretches.push_back(flat.num_elements);
  for (const BucketPlace& place : memory.buckets)
    if (place.trained && memory.zero.shard_optimizer) stretches.push_back(place.bucket.shard_elements);
  for (const std::int64_t stretch : stretches) memory.staged_elements = std::max(memory.staged_elements, stretch);
  memory.staged_elements = std::min(memory.staged_elements, longest);
  if (memory.staged_elements == 0) return;
  std::int64_t pieces = 0;
  for (const std::int64_t stretch : stretches) pieces += ceil_div(stretch, memory.staged_elements);
  std::size_t widest = 0;
  for (const DType dtype : memory.dtypes) widest = std::max(widest, size_of(dtype));
  memory.num_state_staging = narrow<int>(std::min(state_staging_per_rank, pieces));
  memory.state_staging = (1 + memory.num_states) * align_up(static_cast<std::size_t>(memory.staged_elements) * widest);
}

}  // namespace

StateBytes StoreMemory::state_bytes(std::size_t buffer, std::size_t state, std::int64_t elements) const {
  StateBytes bytes{.values = static_cast<std::size_t>(elements) * size_of(state_dtype(buffer, state))};
  if (is_in_blocks(buffer, state))
    bytes.scales = static_cast<std::size_t>(div_exact(elements, state_blocks[buffer])) * size_of(dtypes[buffer]);
  return bytes;
}

bool SumPlace::coalesced() const {
  return count <= largest_coalesced;
}

Shape shape_of(const Box& box) {
  Shape shape;
  for (const std::int64_t extent : box.extent) shape.append(extent);
  return shape;
}

StoreMemory plan_store_memory(const ParamTable& table, const ShardLayout& layout, const ParamStore::Options& options) {
  StoreMemory memory;
  memory.data_degree = layout.mesh().degree(Axis::data);
  memory.shards = layout.mesh().shards();
  memory.shard = layout.mesh().shard_of(layout.position().data);
  memory.zero = effective_policy(options.zero, memory.shards);
  if (memory.zero.shard_optimizer) {
    memory.shard_group = shard_group_of(layout.mesh());
    memory.sums_over_copies = layout.mesh().is_hierarchical();
  }
  memory.gradients = options.gradients;
  memory.second_gradients = options.gradients && options.second_gradients;
  memory.num_states = options.gradients ? options.state_names.size() : 0;
  memory.state_names = options.state_names;
  for (const FlatBuffer& flat : layout.buffers()) {
    memory.dtypes.push_back(flat.dtype == DType::f32 ? options.dtype : flat.dtype);
    memory.compute.push_back(flat.dtype == DType::f32 ? options.compute.value_or(options.dtype) : flat.dtype);
    memory.trained.push_back(flat.role == ParamRole::trained ? 1 : 0);
    memory.absent.push_back(flat.absent_state);
    SCALETRAIN_CHECK(!options.offload || flat.absent_state < 0);  // what passes through the device has all
    memory.state_blocks.push_back(flat.state_block);
  }
  for (int index = 0; index < narrow<int>(layout.buckets().size()); ++index) {
    const Bucket& bucket = layout.buckets()[static_cast<std::size_t>(index)];
    const auto buffer = static_cast<std::size_t>(bucket.buffer);
    BucketPlace place;
    place.bucket = bucket;
    place.dtype = memory.dtypes[buffer];
    place.compute = memory.compute[buffer];
    place.reduce = options.reduce.value_or(place.dtype);
    place.trained = layout.buffers()[buffer].role == ParamRole::trained;
    place.shared = bucket.tied && is_shared(layout, index);
    memory.buckets.push_back(place);
  }
  place_staging(memory, layout);
  place_reduce_staging(memory);
  memory.offload = options.offload;
  const auto& blocks = memory.state_blocks;
  SCALETRAIN_CHECK(!memory.offload || std::all_of(blocks.begin(), blocks.end(), [](auto block) { return block == 0; }));
  if (memory.offload) place_state_staging(memory, layout, options.longest_staged);
  for (const GroupKind kind : {GroupKind::tensor, GroupKind::replication}) {
    std::size_t together = 0;
    for (const int unit : layout.units()) {
      const std::size_t bytes = coalesced_bytes(sums_of(table, layout, options, unit, kind), memory);
      together = memory.data_degree == 1 ? together + bytes : std::max(together, bytes);
    }
    memory.sum_staging = std::max(memory.sum_staging, together);
  }
  return memory;
}

UnitPlace place_unit(const ParamTable& table, const ShardLayout& layout, const StoreMemory& memory,
                     const ParamStore::Options& options, int unit) {
  const ParamUnit& held = table.units()[static_cast<std::size_t>(unit)];
  UnitPlace out;
  out.unit = unit;
  out.buckets = layout.buckets_used_by(unit);
  std::vector<const ParamSpan*> first_span;  // by matrix
  const std::string* open_group = nullptr;
  int index = held.first_parameter;
  for (const Parameter& parameter : table.parameters_of(unit)) {
    const ParamSpan* span = layout.find(index++);
    SCALETRAIN_CHECK(span != nullptr);
    const Shape shape = shape_of(span->box);
    if (!parameter.fused.empty() && open_group != nullptr && *open_group == parameter.fused) {
      MatrixPlace& group = out.matrices.back();
      SCALETRAIN_CHECK_EQ(first_span.back()->offset + group.shape.num_elements(), span->offset);
      group.shape = stacked(group.shape, shape);
      continue;
    }
    open_group = parameter.fused.empty() ? nullptr : &parameter.fused;
    first_span.push_back(span);
    out.matrices.push_back({.name = local_name(parameter.fused.empty() ? parameter.name : parameter.fused, held.name),
                            .bucket = -1,
                            .offset = 0,
                            .shape = shape,
                            .dtype = memory.dtypes[static_cast<std::size_t>(span->buffer)],
                            .compute = memory.compute[static_cast<std::size_t>(span->buffer)],
                            .trained = parameter.role == ParamRole::trained,
                            .joins_after = parameter.joins_after,
                            .lookup_only = parameter.lookup_only});
  }
  for (std::size_t m = 0; m < out.matrices.size(); ++m) {
    MatrixPlace& matrix = out.matrices[m];
    if (matrix.shape.num_elements() == 0) continue;
    matrix.bucket = layout.bucket_at(first_span[m]->buffer, first_span[m]->offset);
    matrix.offset = first_span[m]->offset - memory.buckets[static_cast<std::size_t>(matrix.bucket)].bucket.first;
  }
  out.tensor_sums = sums_of(table, layout, options, unit, GroupKind::tensor);
  out.replication_sums = sums_of(table, layout, options, unit, GroupKind::replication);
  return out;
}

std::vector<PackedPlace> place_packed(const StoreMemory& memory, std::span<const UnitPlace> units,
                                      const std::function<std::size_t(const Shape&)>& packed_bytes) {
  std::vector<PackedPlace> places;
  if (!packed_bytes || memory.zero.shard_parameters) return places;
  std::size_t end = 0;
  for (const UnitPlace& unit : units) {
    for (const MatrixPlace& matrix : unit.matrices) {
      if (matrix.bucket < 0 || matrix.lookup_only || matrix.shape.num_dims() != 2) continue;
      const bool is_placed = std::any_of(places.begin(), places.end(), [&](const PackedPlace& place) {
        return place.bucket == matrix.bucket && place.offset == matrix.offset;
      });
      const std::size_t bytes = packed_bytes(matrix.shape);
      if (is_placed || bytes == 0) continue;
      places.push_back({matrix.bucket, matrix.offset, end, bytes});
      end += align_up(bytes);
    }
  }
  return places;
}

std::vector<FactorPlace> factor_places(const ParamTable& table, const ShardLayout& layout) {
  std::vector<FactorPlace> places;
  std::int64_t end = 0;
  for (const ParamSpan& span : layout.spans()) {
    const Parameter& parameter = table.parameters()[static_cast<std::size_t>(span.parameter)];
    if (!parameter.has_factors) continue;
    places.push_back(
        {.parameter = span.parameter, .first = end, .rows = parameter.shape[0], .columns = parameter.shape[1]});
    end += parameter.num_factors();
  }
  return places;
}

std::size_t factor_bytes(std::span<const FactorPlace> places, DType dtype) {
  if (places.empty()) return 0;
  const FactorPlace& last = places.back();
  return static_cast<std::size_t>(last.first + last.rows + last.columns) * size_of(dtype);
}

UpdatePass update_pass(const ParamTable& table, const ShardLayout& layout, const ParamStore::Options& options) {
  UpdatePass pass;
  const StoreMemory memory = plan_store_memory(table, layout, options);
  if (!memory.offload) return pass;
  const auto add = [&](std::int64_t elements, std::size_t buffer) {
    const std::size_t each = (1 + memory.num_states) * size_of(memory.dtypes[buffer]);
    pass.each_way += static_cast<std::size_t>(elements) * each;
    pass.piece = std::max(pass.piece, static_cast<std::size_t>(std::min(elements, memory.staged_elements)) * each);
  };
  for (std::size_t buffer = 0; buffer < layout.buffers().size(); ++buffer) {
    const FlatBuffer& flat = layout.buffers()[buffer];
    if (flat.role == ParamRole::trained && !memory.zero.shard_optimizer) add(flat.num_elements, buffer);
  }
  for (const BucketPlace& place : memory.buckets)
    if (place.trained && memory.zero.shard_optimizer)
      add(place.bucket.shard_elements, static_cast<std::size_t>(place.bucket.buffer));
  return pass;
}

StoreBytes store_bytes(const ParamTable& table, const ShardLayout& layout, const ParamStore::Options& options) {
  const StoreMemory memory = plan_store_memory(table, layout, options);
  const auto bytes_of = [&](std::size_t buffer, bool sharded, DType dtype) {
    const FlatBuffer& flat = layout.buffers()[buffer];
    return static_cast<std::size_t>(sharded ? flat.shard_elements : flat.num_elements) * size_of(dtype);
  };
  StoreBytes bytes;
  for (std::size_t buffer = 0; buffer < layout.buffers().size(); ++buffer) {
    const DType dtype = memory.dtypes[buffer];
    const bool is_in_compute = memory.trained[buffer] == 0 && (memory.offload || dtype != options.dtype);
    (is_in_compute ? bytes.computed : bytes.masters) +=
        bytes_of(buffer, memory.shards_masters(narrow<int>(buffer)), dtype);
    if (memory.has_own_masters(narrow<int>(buffer)))
      bytes.computed += bytes_of(buffer, memory.zero.shard_parameters, memory.compute[buffer]);
    if (!memory.gradients || layout.buffers()[buffer].role != ParamRole::trained) continue;
    bytes.gradients += bytes_of(buffer, memory.zero.shard_gradients, dtype);
    if (memory.second_gradients) bytes.second_gradients += bytes_of(buffer, memory.zero.shard_optimizer, dtype);
    const FlatBuffer& flat = layout.buffers()[buffer];
    const std::int64_t elements = memory.zero.shard_optimizer ? flat.shard_elements : flat.num_elements;
    for (std::size_t state = 0; state < memory.num_states; ++state)
      if (memory.has_state(narrow<int>(buffer), state))
        bytes.states += memory.state_bytes(buffer, state, elements).total();
  }
  if (memory.gradients) bytes.states += factor_bytes(factor_places(table, layout), options.dtype);
  std::vector<UnitPlace> units;
  for (const int unit : layout.units()) units.push_back(place_unit(table, layout, memory, options, unit));
  for (const PackedPlace& place : place_packed(memory, units, options.packed_bytes))
    bytes.packed = place.first + align_up(place.bytes);
  const auto num_staging = static_cast<std::size_t>(memory.num_staging);
  bytes.state_staging = static_cast<std::size_t>(memory.num_state_staging) * memory.state_staging;
  bytes.gathered = num_staging * memory.weight_staging + memory.shared_weights;
  bytes.gradient_staging = num_staging * memory.gradient_staging + memory.shared_gradients + memory.sum_staging +
                           static_cast<std::size_t>(memory.num_reduce_staging) * memory.reduce_staging;
  return bytes;
}

}  // namespace scaletrain
