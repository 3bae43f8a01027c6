#include "nn/transformer.h"

#include "nn/tensor_sums.h"
#include "nn/units.h"

namespace scaletrain {

Transformer::Transformer(const ModelSpec& spec, const TensorPart& part) : spec_(spec), part_(part) {
  units_.push_back(make_embedding(spec, part));
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) units_.push_back(make_block(spec, part, layer));
  units_.push_back(make_head(spec, part));
}

std::vector<BundleEntry> Transformer::boundary(const BatchShape& shape, DType compute) const {
  return {{"hidden", compute, Shape{own_rows(part_, shape.rows()), spec_.hidden}}};
}

}  // namespace scaletrain
