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

std::optional<float> identity_value(const Parameter& parameter, const ModelConfig& model) {
  const std::string_view name = parameter.name;
  const auto is_of = [name](std::string_view layer) { return name.find(layer) != std::string_view::npos; };
  if (!model.post_norm) return is_of(".attention.output.") || is_of(".ffn.down.") ? std::optional(0.0F) : std::nullopt;
  if (!is_of(".attention_post_norm.weight") && !is_of(".ffn_post_norm.weight")) return std::nullopt;
  return model.norm_zero_centered ? -1.0F : 0.0F;
}

}  // namespace scaletrain
