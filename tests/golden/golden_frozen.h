// Twenty steps with frozen parameters, and with some that join on the way, held against PyTorch in float64
// (make_frozen.py, make_unfrozen.py).
#pragma once

#include "golden_models.h"

namespace scaletrain {

// A whole block, the embedding, and of the other block a weight whose bias is trained and a norm.
inline const GoldenCase with_frozen = {
    .file = "frozen.safetensors",
    .freeze = {"embedding.token.weight", "blocks.0.*", "*.ffn.down.weight", "*.attention_norm.weight"}};

// The last block and the head first; then the other block, but for a norm that never joins; then the embedding.
inline const GoldenCase with_unfrozen = {
    .file = "unfrozen.safetensors",
    .freeze = {"embedding.*", "blocks.0.*"},
    .unfreeze = {{.step = 6, .patterns = {"blocks.0.attention.*", "blocks.0.ffn*"}},
                 {.step = 13, .patterns = {"embedding.*"}}}};

// The same by Adafactor; of llama_untied alone.
inline const GoldenCase with_unfrozen_by_adafactor = {.file = with_unfrozen.file,
                                                      .freeze = with_unfrozen.freeze,
                                                      .unfreeze = with_unfrozen.unfreeze,
                                                      .optimizer = OptimizerKind::adafactor,
                                                      .prefix = "adafactor/"};

inline const std::vector<std::string> models_with_frozen = {"gpt2", "llama_untied"};

}  // namespace scaletrain
