#include "train/step_batch.h"

#include <fmt/format.h>

#include <optional>

#include "optim/adaptive_batch.h"
#include "optim/gradient_noise.h"

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

std::string text_of_fall(const RunState& state, std::int64_t batch) {
  const std::int64_t followed = state.batch.value();
  if (batch == followed || batch == state.history.segments().back().global_batch) return {};
  return fmt::format(
      "step {}: the epoch caps of data.train leave fewer samples than the batch of {} has, and steps fall to {} "
      "(train.global_batch: auto)",
      state.step, followed, batch);
}

}  // namespace scaletrain
