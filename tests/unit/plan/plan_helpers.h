// Configs to plan for, and the message of an error.
#pragma once

#include <doctest/doctest.h>

#include <string>

#include "base/error.h"
#include "config/keys/keys.h"
#include "plan/run_plan.h"

namespace scaletrain {

inline Config preset_config(const std::string& preset) {
  const ModelConfig* model = find_model_preset(preset);
  REQUIRE(model != nullptr);
  Config config;
  config.model = *model;
  config.train.steps = 10;
  return config;
}

inline Config tiny_config() {
  Config config;
  config.model.layers = 6;
  config.model.hidden = 24;
  config.model.heads = 4;
  config.model.kv_heads = 2;
  config.model.ffn_hidden = 40;
  config.model.context = 7;
  config.model.vocab = 61;
  config.train.steps = 10;
  config.train.global_batch = 12;
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
