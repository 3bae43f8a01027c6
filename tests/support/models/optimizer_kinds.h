// Every optimizer but AdamW, at settings with which a few steps of a tiny model move its weights, for tests that all of
// them must pass.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace scaletrain {

struct NamedOptimizer {
  std::string name;
  OptimizerConfig config;
};

inline const std::vector<NamedOptimizer>& optimizers_beside_adamw() {
  static const std::vector<NamedOptimizer> all = [] {
    std::vector<NamedOptimizer> out;
    const auto add = [&out](const char* name, OptimizerKind type, double rate) -> OptimizerConfig& {
      return out.emplace_back(NamedOptimizer{name, {.type = type, .learning_rate = rate, .weight_decay = 0.1}}).config;
    };
    add("sgd with momentum", OptimizerKind::sgd, 1e-2).momentum = 0.9;
    OptimizerConfig& nesterov = add("sgd with nesterov's momentum", OptimizerKind::sgd, 1e-2);
    nesterov.momentum = 0.9;
    nesterov.nesterov = true;
    add("lion", OptimizerKind::lion, 1e-4);
    add("lamb", OptimizerKind::lamb, 1e-3);
    OptimizerConfig& lars = add("lars", OptimizerKind::lars, 1.0);
    lars.momentum = 0.9;
    lars.trust_coefficient = 0.01;
    OptimizerConfig& ademamix = add("ademamix", OptimizerKind::ademamix, 1e-3);
    ademamix.beta3 = 0.99;
    ademamix.slow_warmup = 3;
    OptimizerConfig& muon = add("muon", OptimizerKind::muon, 1e-3);
    muon.momentum = 0.9;
    muon.nesterov = true;
    muon.adamw_rate = 0.5;
    OptimizerConfig& original = add("muon without nesterov's momentum, original steps", OptimizerKind::muon, 1e-2);
    original.momentum = 0.95;
    original.step_scale = StepScale::original;
    OptimizerConfig& adafactor = add("adafactor", OptimizerKind::adafactor, 1e-2);
    adafactor.clip_threshold = 0.7;
    adafactor.smallest_scale = 0.03;
    return out;
  }();
  return all;
}

}  // namespace scaletrain
