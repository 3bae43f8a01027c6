#include "nn/tensor_sums.h"

#include <numeric>

#include "base/error.h"

namespace scaletrain {

bool divides_rows(const TensorPart& part) {
  return part.sequence && part.degree > 1;
}

std::int64_t own_rows(const TensorPart& part, std::int64_t rows) {
  if (!divides_rows(part)) return rows;
  return sequence_shards(rows, part.degree).at(static_cast<std::size_t>(part.rank));
}

std::int64_t first_own_row(const TensorPart& part, std::int64_t rows) {
  if (!divides_rows(part)) return 0;
  const std::vector<std::int64_t> shards = sequence_shards(rows, part.degree);
  return std::accumulate(shards.begin(), shards.begin() + part.rank, std::int64_t{0});
}

TensorSums::TensorSums(Communicator* tensor, Stream& stream, const TensorPart& part, std::vector<GroupCall>* declared)
    : tensor_(tensor), stream_(&stream), part_(part), declared_(declared) {
  if (part.degree == 1 || declares()) return;
  SCALETRAIN_CHECK(tensor != nullptr);
  SCALETRAIN_CHECK_EQ(static_cast<std::int64_t>(tensor->size()), part.degree);
  SCALETRAIN_CHECK_EQ(static_cast<std::int64_t>(tensor->rank_in_group()), part.rank);
}

std::vector<std::int64_t> TensorSums::element_counts(const Shape& unsharded) const {
  std::vector<std::int64_t> counts = sequence_shards(unsharded[0], part_.degree);
  for (std::int64_t& count : counts) count *= unsharded[1];
  return counts;
}

// Whether the call has been written down, and is not to be made.
bool TensorSums::is_declared(CollectiveKind kind, CallPurpose purpose, const View& whole, std::int64_t own) const {
  if (!declares()) return false;
  declared_->push_back({.group = GroupKind::tensor,
                        .kind = kind,
                        .purpose = purpose,
                        .dtype = whole.dtype(),
                        .elements = whole.num_elements(),
                        .own = own});
  return true;
}

View TensorSums::unsharded(View own, View place) const {
  if (!sequence()) return own;
  const std::vector<std::int64_t> counts = element_counts(place.shape());
  SCALETRAIN_CHECK_EQ(own.num_elements(), counts.at(static_cast<std::size_t>(part_.rank)));
  if (!is_declared(CollectiveKind::all_gather, of_activations_, place, own.num_elements()))
    tensor_->all_gather(*stream_, own, counts, place).before(*stream_);
  return place;
}

void TensorSums::sum(View partial, View own) const {
  if (!parallel()) return;
  if (!sequence()) {
    SCALETRAIN_CHECK(partial.data() == own.data());
    if (!is_declared(CollectiveKind::all_reduce, of_activations_, own, own.num_elements()))
      tensor_->all_reduce(*stream_, own, ReduceOp::sum).before(*stream_);
    return;
  }
  const std::vector<std::int64_t> counts = element_counts(partial.shape());
  SCALETRAIN_CHECK_EQ(own.num_elements(), counts.at(static_cast<std::size_t>(part_.rank)));
  if (!is_declared(CollectiveKind::reduce_scatter, of_activations_, partial, own.num_elements()))
    tensor_->reduce_scatter(*stream_, partial, counts, own).before(*stream_);
}

void TensorSums::gather_equal(ConstView own, View all) const {
  SCALETRAIN_CHECK(parallel());
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(part_.degree), own.num_elements());
  if (!is_declared(CollectiveKind::all_gather, CallPurpose::softmax_statistics, all, own.num_elements()))
    tensor_->all_gather(*stream_, own, counts, all).before(*stream_);
}

}  // namespace scaletrain
