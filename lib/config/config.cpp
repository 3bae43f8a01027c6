#include "config/config.h"

#include <algorithm>

#include "base/error.h"

namespace scaletrain {

std::int64_t default_warmup(std::int64_t steps) {
  // A twentieth lets a short run reach its learning rate; beyond some thousands of steps the optimizer's moments have
  // settled, and the longest runs that are published warm up for about 2000.
  constexpr std::int64_t share = 20;
  constexpr std::int64_t most = 2000;
  return std::clamp<std::int64_t>(steps / share, 1, most);
}

bool reads_instructions(const DataConfig& data) {
  const auto is_instructions = [](const auto& source) { return source.records != RecordKind::text; };
  return std::any_of(data.train.begin(), data.train.end(), is_instructions) ||
         std::any_of(data.validation.begin(), data.validation.end(), is_instructions);
}

Precision default_precision(DeviceKind device) {
  return device == DeviceKind::cuda ? Precision::bf16 : Precision::fp32;
}

Precision Config::compute_precision() const {
  return precision.compute.value_or(default_precision(run.device));
}

std::int64_t TrainConfig::num_steps(std::int64_t context) const {
  if (steps) return *steps;
  SCALETRAIN_CHECK(tokens.has_value());
  const std::int64_t tokens_per_step = global_batch * context;  // validation has ruled out an overflow
  SCALETRAIN_CHECK_LT(0, tokens_per_step);
  return *tokens / tokens_per_step + (*tokens % tokens_per_step == 0 ? 0 : 1);
}

}  // namespace scaletrain
