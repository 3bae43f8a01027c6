// Losses, gradients and twenty AdamW steps with low-rank adapters, held against peft in float64 (make_lora.py).
#pragma once

#include "golden_models.h"

namespace scaletrain {

struct LoraModel {
  std::string model;
  GoldenCase with_adapters;
};

// GPT-2's c_attn, which has one adapter for three maps; of Llama's fused maps some and all; Qwen3's between the maps
// and the norms of heads.
inline const std::vector<LoraModel> models_with_lora = {
    {"gpt2", {.file = "lora.safetensors", .lora = LoraConfig{.rank = 4, .alpha = 6.0}}},
    {"llama_untied",
     {.file = "lora.safetensors",
      .lora =
          LoraConfig{.rank = 3, .alpha = 7.0, .targets = {"q_proj", "v_proj", "o_proj", "up_proj", "mlp.down_proj"}}}},
    {"qwen3",
     {.file = "lora.safetensors",
      .lora = LoraConfig{.rank = 5, .alpha = 5.0, .targets = {"k_proj", "q_proj", "gate_proj", "up_proj"}}}},
};

}  // namespace scaletrain
