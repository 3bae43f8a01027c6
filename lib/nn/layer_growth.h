// A deeper model that begins as copies of the layers of a shallower one: which layer each is a copy of, and which of
// the copies begin as the identity.
//
// stack puts all layers on top of each other (Gong et al. 2019, "Efficient Training of BERT by Progressively
// Stacking"), layer i of N being that i mod L of L; interleave puts copies beside their originals, layer i being that
// floor(i·L/N). Where copies begin as the identity, what ends their branches is zero, the maps or, with norms behind
// them (which would blow up the first gradients of maps that are zero), the norms' gains (Wu et al. 2024, "LLaMA
// Pro: Progressive LLaMA with Block Expansion"): what they add to the residual stream is zero, so the deep model
// computes what the shallow one does, and their own gradients lead away from that at the first update.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "config/config.h"
#include "parallel/param_table.h"

namespace scaletrain {

struct GrownLayer {
  std::int64_t source = 0;   // the shallow model's layer
  bool is_identity = false;  // a copy that adds nothing at first
};

// Of each of `layers` layers, from `from` of them: 1 <= from <= layers. The first copy of a layer is the layer itself.
std::vector<GrownLayer> grow_layers(const GrowthConfig& growth, std::int64_t from, std::int64_t layers);

// Of a parameter of a layer that begins as the identity the value of all its elements: one that makes what the layer
// adds to the residual stream zero; nothing: it begins as its source.
std::optional<float> identity_value(const Parameter& parameter, const ModelConfig& model);

}  // namespace scaletrain
