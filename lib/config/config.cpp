#include "config/config.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "config/batch_ramp.h"

namespace scaletrain {

std::int64_t default_warmup(std::int64_t steps) {
  // A twentieth lets a short run reach its learning rate; beyond some thousands of steps the optimizer's moments have
  // settled, and the longest runs that are published warm up for about 2000.
  constexpr std::int64_t share = 20;
  constexpr std::int64_t most = 2000;
  return std::clamp<std::int64_t>(steps / share, 1, most);
}

double peak_learning_rate(const OptimizerConfig& config, std::int64_t global_batch) {
  if (!config.scale_with_batch) return config.learning_rate;
  const double ratio = static_cast<double>(global_batch) / static_cast<double>(config.scale_with_batch->base);
  return config.learning_rate * (config.scale_with_batch->rule == BatchScaling::linear ? ratio : std::sqrt(ratio));
}

bool reads_instructions(const DataConfig& data) {
  const auto is_instructions = [](const auto& source) { return source.records != RecordKind::text; };
  return std::any_of(data.train.begin(), data.train.end(), is_instructions) ||
         std::any_of(data.validation.begin(), data.validation.end(), is_instructions);
}

bool reads_text(const DataConfig& data) {
  const auto is_text = [](const auto& source) { return source.records == RecordKind::text; };
  return std::any_of(data.train.begin(), data.train.end(), is_text) ||
         std::any_of(data.validation.begin(), data.validation.end(), is_text);
}

void add_held_out_sets(DataConfig& data) {
  for (std::size_t i = 0; i < data.train.size(); ++i) {
    const SourceConfig& source = data.train[i];
    if (!source.split) continue;
    ValidationConfig& set = data.validation.emplace_back();
    set.name = source.split->name;
    set.path = source.path;
    set.type = source.type;
    set.records = source.records;
    set.field = source.field;
    set.separator = source.separator;
    set.held_out_of = i;
  }
}

std::string validation_key(const DataConfig& data, std::size_t set) {
  const std::optional<std::size_t>& source = data.validation.at(set).held_out_of;
  return source ? fmt::format("data.train.{}.split", *source) : fmt::format("data.validation.{}", set);
}

Precision default_precision(DeviceKind device) {
  return device == DeviceKind::cuda ? Precision::bf16 : Precision::fp32;
}

Precision Config::compute_precision() const {
  return precision.compute.value_or(default_precision(run.device));
}

const char* TrainConfig::length_key() const {
  return steps ? "train.steps" : epochs ? "train.epochs" : "train.tokens";
}

std::optional<std::int64_t> TrainConfig::num_steps(std::int64_t context) const {
  if (steps) return steps;
  if (epochs) return std::nullopt;
  SCALETRAIN_CHECK(tokens.has_value());
  SCALETRAIN_CHECK_LT(0, context);
  return steps_to_samples(*this, 0, *tokens / context + (*tokens % context == 0 ? 0 : 1));
}

}  // namespace scaletrain
