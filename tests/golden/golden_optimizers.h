// Twenty steps of every optimizer but AdamW, held against PyTorch and against the papers' formulas in float64
// (make_optimizers.py).
#pragma once

#include "golden_models.h"

namespace scaletrain {

inline GoldenCase golden_optimizer_case(OptimizerKind kind, const std::string& name) {
  return {.file = "optimizers.safetensors", .optimizer = kind, .prefix = name + "/"};
}

inline const std::vector<GoldenCase> golden_optimizers = {
    golden_optimizer_case(OptimizerKind::sgd, "sgd_momentum"),
    golden_optimizer_case(OptimizerKind::sgd, "sgd_nesterov"),
    golden_optimizer_case(OptimizerKind::lion, "lion"),
    golden_optimizer_case(OptimizerKind::lamb, "lamb"),
    golden_optimizer_case(OptimizerKind::lars, "lars"),
    golden_optimizer_case(OptimizerKind::ademamix, "ademamix"),
    golden_optimizer_case(OptimizerKind::muon, "muon"),
    golden_optimizer_case(OptimizerKind::muon, "muon_original"),
    golden_optimizer_case(OptimizerKind::adafactor, "adafactor"),
    golden_optimizer_case(OptimizerKind::adafactor, "adafactor_clipped")};

inline const std::vector<std::string> models_with_optimizers = {"gpt2", "llama_untied"};

}  // namespace scaletrain
