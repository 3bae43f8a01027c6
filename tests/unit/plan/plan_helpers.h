// Configs to plan for, and the message of an error.
#pragma once

#include <doctest/doctest.h>

#include <string>

#include "base/error.h"
#include "config/keys/keys.h"
#include "plan/run_plan.h"
#include "support/tiny_model.h"

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

// The message of the UserError that f throws; empty if it throws nothing.
template <class F>
std::string user_error(F f) {
  try {
    f();
  } catch (const UserError& error) {
    return error.what();
  }
  return {};
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace scaletrain
