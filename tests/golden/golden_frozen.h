// Twenty AdamW steps with frozen parameters, held against PyTorch in float64 (make_frozen.py).
#pragma once

#include "golden_models.h"

namespace scaletrain {

// A whole block, the embedding, and of the other block a weight whose bias is trained and a norm.
inline const GoldenCase with_frozen = {
    .file = "frozen.safetensors",
    .freeze = {"embedding.token.weight", "blocks.0.*", "*.ffn.down.weight", "*.attention_norm.weight"}};

inline const std::vector<std::string> models_with_frozen = {"gpt2", "llama_untied"};

}  // namespace scaletrain
