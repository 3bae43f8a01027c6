#include "config/optimizer_rules.h"

#include <fmt/core.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "config/keys/keys.h"

namespace scaletrain {

namespace {

using Kinds = std::initializer_list<OptimizerKind>;

// "adamw, lion and lamb".
std::string list_of(Kinds kinds) {
  std::string text;
  for (const auto* kind = kinds.begin(); kind != kinds.end(); ++kind) {
    if (kind != kinds.begin()) text += kind + 1 == kinds.end() ? " and " : ", ";
    text += to_text(*kind);
  }
  return text;
}

class IdleKeys {
 public:
  explicit IdleKeys(OptimizerConfig& config) : config_(config) {}

  // A key of these optimizers.
  template <class Value>
  void add(Kinds readers, const std::string& name, Value OptimizerConfig::*member) {
    add(readers, name, config_.*member == OptimizerConfig().*member,
        [&config = config_, member] { config.*member = OptimizerConfig().*member; });
  }
  void add(Kinds readers, const std::string& name, bool is_default, std::function<void()> reset) {
    if (std::find(readers.begin(), readers.end(), config_.type) != readers.end()) return;
    keys_.push_back({.path = "train.optimizer." + name,
                     .reason = fmt::format("it is only for train.optimizer.type {}; this one is {}", list_of(readers),
                                           to_text(config_.type)),
                     .is_default = is_default,
                     .reset = std::move(reset)});
  }
  std::vector<IdleOptimizerKey> take() { return std::move(keys_); }

 private:
  OptimizerConfig& config_;
  std::vector<IdleOptimizerKey> keys_;
};

}  // namespace

std::vector<IdleOptimizerKey> idle_optimizer_keys(OptimizerConfig& optimizer) {
  using enum OptimizerKind;
  const OptimizerConfig fallback;
  IdleKeys keys(optimizer);
  keys.add({adamw, lion, lamb, ademamix, muon}, "betas",
           optimizer.beta1 == fallback.beta1 && optimizer.beta2 == fallback.beta2, [&optimizer] {
             optimizer.beta1 = OptimizerConfig().beta1;
             optimizer.beta2 = OptimizerConfig().beta2;
           });
  keys.add({adamw, lamb, ademamix, muon}, "epsilon", &OptimizerConfig::epsilon);
  keys.add({sgd, lars, muon}, "momentum", &OptimizerConfig::momentum);
  keys.add({sgd, muon}, "nesterov", &OptimizerConfig::nesterov);
  keys.add({lars}, "trust_coefficient", &OptimizerConfig::trust_coefficient);
  keys.add({ademamix}, "alpha", &OptimizerConfig::alpha);
  keys.add({ademamix}, "beta3", &OptimizerConfig::beta3);
  keys.add({ademamix}, "slow_warmup", &OptimizerConfig::slow_warmup);
  keys.add({muon}, "step_scale", &OptimizerConfig::step_scale);
  keys.add({muon}, "adamw_rate", &OptimizerConfig::adamw_rate);
  keys.add({adafactor}, "beta2_exponent", &OptimizerConfig::beta2_exponent);
  keys.add({adafactor}, "clip_threshold", &OptimizerConfig::clip_threshold);
  keys.add({adafactor}, "smallest_scale", &OptimizerConfig::smallest_scale);
  return keys.take();
}

std::vector<OptimizerProblem> optimizer_problems(const OptimizerConfig& optimizer) {
  using enum OptimizerKind;
  std::vector<OptimizerProblem> problems;
  if (optimizer.type == sgd && optimizer.nesterov && optimizer.momentum == 0)
    problems.push_back({{"train.optimizer.nesterov", "train.optimizer.momentum"},
                        "there is no momentum for it: set train.optimizer.momentum, such as 0.9, or leave it out"});
  const bool measures_tensors = optimizer.type == lamb || optimizer.type == lars || optimizer.type == adafactor;
  if (measures_tensors && optimizer.offload == OffloadKind::host)
    problems.push_back(
        {{"train.optimizer.offload", "train.optimizer.type"},
         fmt::format("host is not possible with {}, whose step follows from the norms of whole tensors, while their "
                     "parts pass through the GPU one by one: leave it out, or take another optimizer",
                     to_text(optimizer.type))});
  if (optimizer.type == muon && optimizer.offload == OffloadKind::host)
    problems.push_back({{"train.optimizer.offload", "train.optimizer.type"},
                        "host is not possible with muon, which orthogonalises whole matrices, while their parts pass "
                        "through the GPU one by one: leave it out, or take another optimizer"});
  if (optimizer.state == OptimizerStateType::int8 && optimizer.type != adamw)
    problems.push_back(
        {{"train.optimizer.state", "train.optimizer.type"},
         fmt::format("int8 is not supported yet with {}: leave it out, or take adamw", to_text(optimizer.type))});
  if (optimizer.state == OptimizerStateType::int8 && optimizer.offload == OffloadKind::host)
    problems.push_back(
        {{"train.optimizer.offload", "train.optimizer.state"},
         "host is not supported yet with train.optimizer.state: int8, which takes the moments to a quarter "
         "of their memory where they are: leave out one of the two"});
  return problems;
}

bool keeps_momentum(const OptimizerConfig& optimizer) {
  const bool may_have_none = optimizer.type == OptimizerKind::sgd || optimizer.type == OptimizerKind::lars;
  return !may_have_none || optimizer.momentum > 0;
}

bool may_offload(const Config& config) {
  OptimizerConfig offloaded = config.train.optimizer;
  if (offloaded.offload != OffloadKind::none) return false;
  offloaded.offload = OffloadKind::host;
  return optimizer_problems(offloaded).empty();
}

bool may_hold_moments_in_8_bits(const Config& config) {
  OptimizerConfig in_8_bits = config.train.optimizer;
  if (in_8_bits.state != OptimizerStateType::fp32) return false;
  in_8_bits.state = OptimizerStateType::int8;
  return optimizer_problems(in_8_bits).empty();
}

}  // namespace scaletrain
