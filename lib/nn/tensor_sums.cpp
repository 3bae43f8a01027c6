#include "nn/tensor_sums.h"

#include "base/error.h"

namespace scaletrain {

bool divides_rows(const TensorPart& part) {
  return part.sequence && part.degree > 1;
}

std::int64_t own_rows(const TensorPart& part, std::int64_t rows) {
  if (!divides_rows(part)) return rows;
  return sequence_shards(rows, part.degree).at(static_cast<std::size_t>(part.rank));
}

TensorSums::TensorSums(Communicator* tensor, Stream& stream, const TensorPart& part)
    : tensor_(tensor), stream_(&stream), part_(part) {
  if (part.degree == 1) return;
  SCALETRAIN_CHECK(tensor != nullptr);
  SCALETRAIN_CHECK_EQ(static_cast<std::int64_t>(tensor->size()), part.degree);
  SCALETRAIN_CHECK_EQ(static_cast<std::int64_t>(tensor->rank_in_group()), part.rank);
}

std::vector<std::int64_t> TensorSums::element_counts(const Shape& unsharded) const {
  std::vector<std::int64_t> counts = sequence_shards(unsharded[0], part_.degree);
  for (std::int64_t& count : counts) count *= unsharded[1];
  return counts;
}

View TensorSums::unsharded(View own, View place) const {
  if (!sequence()) return own;
  const std::vector<std::int64_t> counts = element_counts(place.shape());
  SCALETRAIN_CHECK_EQ(own.num_elements(), counts.at(static_cast<std::size_t>(part_.rank)));
  tensor_->all_gather(*stream_, own, counts, place).before(*stream_);
  return place;
}

void TensorSums::sum(View partial, View own) const {
  if (!parallel()) return;
  if (!sequence()) {
    SCALETRAIN_CHECK(partial.data() == own.data());
    tensor_->all_reduce(*stream_, own, ReduceOp::sum).before(*stream_);
    return;
  }
  const std::vector<std::int64_t> counts = element_counts(partial.shape());
  SCALETRAIN_CHECK_EQ(own.num_elements(), counts.at(static_cast<std::size_t>(part_.rank)));
  tensor_->reduce_scatter(*stream_, partial, counts, own).before(*stream_);
}

void TensorSums::gather_equal(ConstView own, View all) const {
  SCALETRAIN_CHECK(parallel());
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(part_.degree), own.num_elements());
  tensor_->all_gather(*stream_, own, counts, all).before(*stream_);
}

}  // namespace scaletrain
