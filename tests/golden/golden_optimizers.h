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

// Factors on the weight decay of every kind of tensor (make_weight_decays.py has the same by the families' names), with
// every optimizer.
inline std::vector<GoldenCase> golden_weight_decays(const std::string& model) {
  using Factors = std::vector<std::pair<std::string, double>>;
  const Factors factors = model == "gpt2" ? Factors{{"*.weight", 0.5},
                                                    {"*.bias", 2.0},
                                                    {"blocks.1.*", 3.0},
                                                    {"*.attention.value.weight", 0.0},
                                                    {"embedding.position.weight", 0.0},
                                                    {"head.norm.weight", 1.5}}
                                          : Factors{{"*.weight", 0.5},    {"*_norm.weight", 2.0},
                                                    {"blocks.1.*", 3.0},  {"*.attention.value.weight", 0.0},
                                                    {"head.weight", 0.0}, {"head.norm.weight", 1.0}};
  const std::pair<OptimizerKind, const char*> optimizers[] = {
      {OptimizerKind::adamw, "adamw"}, {OptimizerKind::sgd, "sgd_momentum"},   {OptimizerKind::lion, "lion"},
      {OptimizerKind::lamb, "lamb"},   {OptimizerKind::lars, "lars"},          {OptimizerKind::ademamix, "ademamix"},
      {OptimizerKind::muon, "muon"},   {OptimizerKind::adafactor, "adafactor"}};
  std::vector<GoldenCase> cases;
  for (const auto& [kind, name] : optimizers) {
    GoldenCase& of = cases.emplace_back(golden_optimizer_case(kind, name));
    of.file = "weight_decays.safetensors";
    of.weight_decays = factors;
  }
  return cases;
}

}  // namespace scaletrain
