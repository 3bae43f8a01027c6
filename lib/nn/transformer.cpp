#include "nn/transformer.h"

#include "nn/units.h"

namespace scaletrain {

Transformer::Transformer(const ModelSpec& spec) : spec_(spec) {
  units_.push_back(make_embedding(spec));
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) units_.push_back(make_block(spec, layer));
  units_.push_back(make_head(spec));
}

std::vector<BundleEntry> Transformer::boundary(const BatchShape& shape, DType compute) const {
  return {{"hidden", compute, Shape{shape.rows(), spec_.hidden}}};
}

}  // namespace scaletrain
