#include "optim/adaptive_batch.h"

#include "base/error.h"

namespace scaletrain {

std::optional<std::int64_t> continue_batch(const std::optional<std::int64_t>& before, const TrainConfig& config) {
  if (!config.adapts_batch) return std::nullopt;
  SCALETRAIN_CHECK(config.batch_auto.has_value());
  const BatchAutoConfig& bounds = *config.batch_auto;
  std::int64_t batch = bounds.min;
  while (before && batch <= bounds.max / 2 && 2 * batch <= *before) batch *= 2;
  return batch;
}

std::int64_t adapted_batch(const BatchAutoConfig& config, std::int64_t step, std::int64_t batch,
                           const std::optional<double>& noise_scale) {
  SCALETRAIN_CHECK(batch >= config.min && batch <= config.max);
  if (step % config.every != 0 || !noise_scale) return batch;
  const auto samples = static_cast<double>(batch);
  if (*noise_scale >= 2.0 * samples && batch < config.max) return 2 * batch;
  if (*noise_scale < samples / 2.0 && batch > config.min) return batch / 2;
  return batch;
}

}  // namespace scaletrain
