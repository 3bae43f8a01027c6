#include "optim/whole_matrices.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "store/rank_groups.h"

namespace scaletrain {

namespace {

// Elements [first, end) of a flat buffer.
struct Stretch {
  std::int64_t first = 0, end = 0;
  std::int64_t count() const { return std::max<std::int64_t>(0, end - first); }
};

const Bucket* bucket_of(const ShardLayout& layout, int unit, int buffer) {
  const auto found = std::find_if(layout.buckets().begin(), layout.buckets().end(), [&](const Bucket& bucket) {
    return bucket.unit == unit && bucket.buffer == buffer && !bucket.tied;
  });
  return found == layout.buckets().end() ? nullptr : &*found;
}

Stretch own_shard(const Bucket& bucket, std::int64_t shard) {
  const std::int64_t first = bucket.first + shard * bucket.shard_elements;
  return {first, first + bucket.shard_elements};
}

Stretch both(const Stretch& a, const Stretch& b) {
  return {std::max(a.first, b.first), std::min(a.end, b.end)};
}

// Whether the rank of this layout updates elements of the parameter.
bool updates(const ParamTable& table, const ShardLayout& layout, int parameter, bool is_sharded) {
  const ParamSpan* const span = layout.find(parameter);
  if (span == nullptr || span->count == 0) return false;
  if (!is_sharded) return true;
  const int unit = table.parameters()[static_cast<std::size_t>(parameter)].unit;
  const Bucket* const bucket = bucket_of(layout, unit, span->buffer);
  SCALETRAIN_CHECK(bucket != nullptr);
  const std::int64_t shard = layout.mesh().shard_of(layout.position().data);
  return both(own_shard(*bucket, shard), {span->offset, span->offset + span->count}).count() > 0;
}

// Of one that only repeats another's part nothing.
Box contributed(const Parameter& parameter, std::int64_t degree, std::int64_t rank) {
  Box box = ParamTable::box_of(parameter, degree, rank);
  if (!ParamTable::is_first_replica(parameter, degree, rank)) box.extent.assign(box.extent.size(), 0);
  return box;
}

View flat(const View& values) {
  return values.reshape({values.num_elements()});
}

// Columns [first, first + count) of a matrix, as what a stride of its columns reads or writes.
View columns_of(const View& matrix, std::int64_t first, std::int64_t count) {
  auto* const data = static_cast<std::byte*>(matrix.data()) + static_cast<std::size_t>(first) * size_of(matrix.dtype());
  return {data, matrix.dtype(), {matrix.shape()[0], count}, matrix.space()};
}

}  // namespace

bool is_orthogonalised(const Parameter& parameter) {
  return parameter.role == ParamRole::trained && parameter.is_hidden_map;
}

WholeMatrices::WholeMatrices(const ParamTable& table, const ShardLayout& layout, const ParamStore::Options& options)
    : compute_(options.compute.value_or(options.dtype)) {
  const Mesh& mesh = layout.mesh();
  const bool is_sharded = options.zero.shard_optimizer && mesh.shards() > 1;
  if (is_sharded) shard_group_ = shard_group_of(mesh);
  shard_ = mesh.shard_of(layout.position().data);
  tensor_rank_ = static_cast<std::size_t>(layout.position().tensor);
  std::vector<ShardLayout> tensor_group;
  for (std::int64_t rank = 0; mesh.degree(Axis::tensor) > 1 && rank < mesh.degree(Axis::tensor); ++rank) {
    MeshPosition position = layout.position();
    position.tensor = rank;
    tensor_group.emplace_back(table, layout.units(), mesh, position);
  }
  for (const int unit : layout.units()) {
    const ParamUnit& held = table.units()[static_cast<std::size_t>(unit)];
    const std::size_t first = buckets_.size();
    for (int index = held.first_parameter; index < held.first_parameter + held.num_parameters; ++index) {
      if (!is_orthogonalised(table.parameters()[static_cast<std::size_t>(index)])) continue;
      const ParamSpan* const span = layout.find(index);
      SCALETRAIN_CHECK(span != nullptr);
      auto found = std::find_if(buckets_.begin() + narrow<std::ptrdiff_t>(first), buckets_.end(),
                                [&](const MatrixBucket& bucket) { return bucket.buffer == span->buffer; });
      if (found == buckets_.end()) {
        MatrixBucket bucket;
        bucket.buffer = span->buffer;
        if (const Bucket* const at = bucket_of(layout, unit, span->buffer); at != nullptr) bucket.bucket = *at;
        bucket.is_gathered = is_sharded && bucket.bucket && bucket.bucket->count > 0;
        if (bucket.is_gathered) longest_bucket_ = std::max(longest_bucket_, bucket.bucket->count);
        found = buckets_.insert(buckets_.end(), std::move(bucket));
      }
      found->matrices.push_back(local_matrix(table, layout, tensor_group, index, is_sharded));
    }
  }
}

LocalMatrix WholeMatrices::local_matrix(const ParamTable& table, const ShardLayout& layout,
                                        std::span<const ShardLayout> tensor_group, int parameter, bool is_sharded) {
  const Parameter& of = table.parameters()[static_cast<std::size_t>(parameter)];
  const ParamSpan& span = *layout.find(parameter);
  LocalMatrix matrix{.parameter = parameter, .box = span.box, .offset = span.offset};
  matrix.is_updated = matrix.is_needed = updates(table, layout, parameter, is_sharded);
  const auto degree = narrow<std::int64_t>(tensor_group.size());
  if (of.split.kind != Split::Kind::replicated && degree > 1) {
    matrix.cut = of.split.dim;
    for (std::int64_t rank = 0; rank < degree; ++rank) matrix.parts.push_back(contributed(of, degree, rank));
    matrix.is_needed = std::any_of(tensor_group.begin(), tensor_group.end(), [&](const ShardLayout& member) {
      return updates(table, member, parameter, is_sharded);
    });
  }
  extent_.include(of.shape[0], of.shape[1]);
  return matrix;
}

std::size_t WholeMatrices::bytes() const {
  return NewtonSchulz::bytes(extent_, compute_) + static_cast<std::size_t>(longest_bucket_) * size_of(compute_);
}

std::vector<GroupCall> WholeMatrices::calls() const {
  std::vector<GroupCall> calls;
  for (const MatrixBucket& bucket : buckets_) {
    const GroupCall call{.kind = CollectiveKind::all_gather, .purpose = CallPurpose::directions, .dtype = compute_};
    if (bucket.is_gathered) {
      calls.push_back(call);
      calls.back().group = shard_group_;
      calls.back().elements = bucket.bucket->count;
      calls.back().own = bucket.bucket->shard_elements;
    }
    for (const LocalMatrix& matrix : bucket.matrices) {
      if (!matrix.is_needed || matrix.parts.empty()) continue;
      calls.push_back(call);
      calls.back().group = GroupKind::tensor;
      for (const Box& part : matrix.parts) calls.back().elements += part.num_elements();
      calls.back().own = matrix.parts[tensor_rank_].num_elements();
    }
  }
  return calls;
}

MatrixWork::MatrixWork(Backend& backend, const ParamStore& store)
    : backend_(backend),
      store_(store),
      matrices_(store.table(), store.layout(), store.options()),
      iterations_(backend, matrices_.extent()),
      bucket_(
          backend.allocate(static_cast<std::size_t>(matrices_.longest_bucket()) * size_of(backend.compute_type()))) {}

Communicator& MatrixWork::group(GroupKind kind) const {
  Communicator* const found = store_.options().groups == nullptr ? nullptr : store_.options().groups->find(kind);
  SCALETRAIN_CHECK(found != nullptr);
  return *found;
}

void MatrixWork::orthogonalise(Stream& stream, const Find& find) const {
  for (const MatrixBucket& bucket : matrices_.buckets()) {
    const View all = bucket.is_gathered ? gathered(stream, bucket, find) : View();
    for (const LocalMatrix& matrix : bucket.matrices) {
      if (!matrix.is_needed) continue;
      View own;
      if (const std::int64_t elements = matrix.box.num_elements(); elements > 0)
        own = all ? all.rows(matrix.offset - bucket.bucket->first, elements)
                  : find(bucket.buffer, matrix.offset, elements);
      make_whole(stream, matrix, own);
      if (!matrix.is_updated) continue;
      const Shape& shape = store_.table().parameters()[static_cast<std::size_t>(matrix.parameter)].shape;
      put_back(stream, bucket, matrix, iterations_.orthogonalise(stream, shape[0], shape[1]), find);
    }
  }
}

// The bucket of all who share its update, in the compute type.
View MatrixWork::gathered(Stream& stream, const MatrixBucket& bucket, const Find& find) const {
  const Bucket& of = *bucket.bucket;
  const View all = bucket_.view(0, backend_.compute_type(), {of.count});
  const View own = all.rows(matrices_.shard_ * of.shard_elements, of.shard_elements);
  const Stretch shard = own_shard(of, matrices_.shard_);
  backend_.run(stream, Copy{.input = find(bucket.buffer, shard.first, shard.count()), .output = own});
  Communicator& shards = group(matrices_.shard_group_);
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(shards.size()), of.shard_elements);
  shards.all_gather(stream, own, counts, all).before(stream);
  return all;
}

// Puts the matrix in the iterations' first place.
void MatrixWork::make_whole(Stream& stream, const LocalMatrix& matrix, const View& own) const {
  const Shape& shape = store_.table().parameters()[static_cast<std::size_t>(matrix.parameter)].shape;
  const View whole = iterations_.first(shape[0], shape[1]);
  if (matrix.parts.empty()) return backend_.run(stream, Copy{.input = own, .output = flat(whole)});
  // Parts of rows follow each other as they stand in the matrix; parts of columns are put where they belong.
  const View parts = flat(matrix.cut == 0 ? whole : iterations_.second(shape[0], shape[1]));
  std::vector<std::int64_t> counts;
  std::int64_t first = 0;
  const std::size_t rank = matrices_.tensor_rank_;
  for (const Box& part : matrix.parts) counts.push_back(part.num_elements());
  first = std::accumulate(counts.begin(), counts.begin() + narrow<std::ptrdiff_t>(rank), first);
  const View piece = parts.rows(first, counts[rank]);
  if (counts[rank] > 0) backend_.run(stream, Copy{.input = own, .output = piece});
  group(GroupKind::tensor).all_gather(stream, piece, counts, parts).before(stream);
  if (matrix.cut == 0) return;
  first = 0;
  for (std::size_t part = 0; part < matrix.parts.size(); ++part) {
    const std::int64_t columns = counts[part] / shape[0];
    if (columns == 0) continue;
    backend_.run(stream, Scale{.input = parts.rows(first, counts[part]).reshape({shape[0], columns}),
                               .output = columns_of(whole, matrix.parts[part].first[1], columns),
                               .output_stride = shape[1]});
    first += counts[part];
  }
}

// What the rank updates of it.
void MatrixWork::put_back(Stream& stream, const MatrixBucket& bucket, const LocalMatrix& matrix, const View& whole,
                          const Find& find) const {
  View own = whole;
  if (!matrix.parts.empty() && matrix.cut == 0) own = whole.rows(matrix.box.first[0], matrix.box.extent[0]);
  if (!matrix.parts.empty() && matrix.cut == 1) {
    const Shape& shape = whole.shape();
    const View first = iterations_.first(shape[0], shape[1]);
    const View& free = whole.data() == first.data() ? iterations_.second(shape[0], shape[1]) : first;
    own = flat(free).rows(0, matrix.box.num_elements()).reshape({matrix.box.extent[0], matrix.box.extent[1]});
    backend_.run(stream, Scale{.input = columns_of(whole, matrix.box.first[1], matrix.box.extent[1]),
                               .output = own,
                               .input_stride = shape[1]});
  }
  Stretch updated{matrix.offset, matrix.offset + matrix.box.num_elements()};
  if (bucket.is_gathered) updated = both(updated, own_shard(*bucket.bucket, matrices_.shard_));
  backend_.run(stream, Copy{.input = flat(own).rows(updated.first - matrix.offset, updated.count()),
                            .output = find(bucket.buffer, updated.first, updated.count())});
}

}  // namespace scaletrain
