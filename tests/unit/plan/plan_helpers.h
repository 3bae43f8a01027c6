// Configs to plan for, and the message of an error.
#pragma once

#include <doctest/doctest.h>

#include <string>

#include "base/error.h"
#include "config/keys/keys.h"
#include "plan/run_plan.h"
#include "support/models/tiny_model.h"
#include "support/text.h"

namespace scaletrain {

inline Config preset_config(const std::string& preset) {
  const ModelConfig* model = find_model_preset(preset);
  REQUIRE(model != nullptr);
  Config config;
  config.model = *model;
  config.train.steps = 10;
  return config;
}

inline Config planned_config() {
  Config config = tiny_config({.layers = 6, .hidden = 24, .ffn_hidden = 40});
  config.train.micro_batch = 3;
  return config;
}

}  // namespace scaletrain
