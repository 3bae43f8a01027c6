#include "train/step_batch.h"

#include <fmt/format.h>

#include <optional>

#include "optim/adaptive_batch.h"
#include "optim/gradient_noise.h"
#include "train/data/data_left.h"

namespace scaletrain {

std::string follow_noise(const TrainConfig& train, RunState& state) {
  const std::optional<double> scale = noise_scale(state.gradient_noise.value());
  const std::int64_t before = state.batch.value();
  const std::int64_t batch = adapted_batch(*train.batch_auto, state.step, before, scale);
  if (batch == before) return {};
  state.batch = batch;
  return fmt::format(
      "step {}: the gradient noise scale is {:.4g} samples, the batch {} from {} to {} (train.global_batch: auto)",
      state.step, *scale, batch > before ? "grows" : "falls", before, batch);
}

std::string fit_to_data(const TrainingData& data, const TrainConfig& train, RunState& state) {
  const std::int64_t before = state.batch.value();
  const std::int64_t batch = filled_batch(data, train, state);
  if (batch == before) return {};
  state.batch = batch;
  return fmt::format(
      "step {}: the epoch caps of data.train leave fewer samples than the batch has, which falls from {} to {} "
      "(train.global_batch: auto)",
      state.step, before, batch);
}

}  // namespace scaletrain
