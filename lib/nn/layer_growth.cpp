#include "nn/layer_growth.h"

#include <string_view>

#include "base/error.h"

namespace scaletrain {

std::vector<GrownLayer> grow_layers(const GrowthConfig& growth, std::int64_t from, std::int64_t layers) {
  SCALETRAIN_CHECK(from >= 1 && from <= layers && growth.order != GrowthOrder::none);
  std::vector<GrownLayer> grown;
  std::vector<bool> is_taken(static_cast<std::size_t>(from), false);
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const std::int64_t source = growth.order == GrowthOrder::stack ? layer % from : layer * from / layers;
    const auto place = static_cast<std::size_t>(source);
    grown.push_back({.source = source, .is_identity = growth.identity && is_taken[place]});
    is_taken[place] = true;
  }
  return grown;
}

bool ends_residual_branch(const Parameter& parameter) {
  const std::string_view name = parameter.name;
  return name.find(".attention.output.") != std::string_view::npos || name.find(".ffn.down.") != std::string_view::npos;
}

}  // namespace scaletrain
