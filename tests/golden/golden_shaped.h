// Smoothed labels and PaLM's z-loss, held against PyTorch in float64 (make_loss_shapes.py).
#pragma once

#include "golden_models.h"

namespace scaletrain {

inline const GoldenCase with_shape = {.file = "shaped.safetensors", .loss = {.label_smoothing = 0.1, .z_loss = 1e-2}};

// A head of its own; logits that are capped, of a head that is the embedding.
inline const std::vector<std::string> models_with_shape = {"llama_untied", "gemma2"};

}  // namespace scaletrain
