#include "optim/spike_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "base/error.h"

namespace scaletrain {

namespace {

// Far above what rounding and the order of sums make of a loss (1e-5), far below what anybody calls a spike.
constexpr double least_relative_deviation = 1e-3;
// For a mean of zero: the score stays a number.
constexpr double least_deviation = 1e-30;

double mean_of(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double deviation_of(std::span<const double> values, double mean) {
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / static_cast<double>(values.size()));
}

}  // namespace

std::optional<LossLevel> loss_level(const SpikeConfig& config, const SpikeState& state) {
  SCALETRAIN_CHECK(config.window >= 1 && config.zscore > 0);
  const auto window = static_cast<std::size_t>(config.window);
  if (state.losses.size() < window) return std::nullopt;
  // A resume may have made the window smaller.
  const auto newest = std::span(state.losses).last(window);
  LossLevel level;
  level.mean = mean_of(newest);
  level.deviation =
      std::max({deviation_of(newest, level.mean), least_relative_deviation * std::abs(level.mean), least_deviation});
  level.limit = level.mean + config.zscore * level.deviation;
  return level;
}

SpikeState after_loss(const SpikeConfig& config, SpikeState state, Step step, double loss) {
  SCALETRAIN_CHECK(std::isfinite(loss));
  const std::optional<LossLevel> level = loss_level(config, state);
  if (level && loss > level->limit) {
    if (++state.row < config.window) return state;
    state.losses.clear();
    state.row = 0;
    return state;
  }
  state.row = 0;
  if (step.value() > state.furthest) state.rollbacks = state.furthest = 0;
  const auto kept = static_cast<std::size_t>(config.window - 1);
  if (state.losses.size() > kept) {
    const auto old = static_cast<std::ptrdiff_t>(state.losses.size() - kept);
    state.losses.erase(state.losses.begin(), state.losses.begin() + old);
  }
  state.losses.push_back(loss);
  return state;
}

void require_rollback(const SpikeState& before, Step step) {
  if (before.rollbacks < most_rollbacks) return;
  throw DivergedError(
      fmt::format("step {}: the loss has jumped again after {} rollbacks in a row that did not lead beyond step {} "
                  "(train.spike). Lower train.optimizer.learning_rate, resume from an older checkpoint, or look at the "
                  "data of these steps",
                  step.value(), before.rollbacks, std::max(before.furthest, step.value())));
}

SpikeState after_rollback(const SpikeState& before, SpikeState restored, Step step) {
  require_rollback(before, step);
  restored.rollbacks = before.rollbacks + 1;
  restored.furthest = std::max(before.furthest, step.value());
  return restored;
}

}  // namespace scaletrain
