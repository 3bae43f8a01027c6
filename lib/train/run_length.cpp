#include "train/run_length.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "optim/lr_schedule.h"

namespace scaletrain {

std::int64_t last_step(const Config& config, const RunState& state) {
  const TrainConfig& train = config.train;
  if (train.steps) return *train.steps;
  SCALETRAIN_CHECK(train.tokens.has_value());
  const std::int64_t left = *train.tokens - state.history.tokens_consumed();
  if (left <= 0) return state.step;
  return checked_add(state.step, ceil_div(left, checked_mul(train.global_batch, config.model.context)));
}

std::int64_t warmup_steps(const Config& config, const RunState& state) {
  if (config.train.lr_schedule.warmup) return *config.train.lr_schedule.warmup;
  const std::int64_t steps = last_step(config, state);
  return state.warmup && *state.warmup <= steps ? *state.warmup : default_warmup(steps);
}

void check_warmup(const Config& config, const RunState& state) {
  const auto& warmup = config.train.lr_schedule.warmup;
  const std::int64_t steps = last_step(config, state);
  if (!warmup || *warmup <= steps) return;
  throw UserError(
      fmt::format("train.lr_schedule.warmup: warm-up of {} steps exceeds the run's {} steps; lower it, leave it out "
                  "(auto) or raise {}",
                  *warmup, steps, length_key(config)));
}

double next_learning_rate(const Config& config, const RunState& state) {
  LrScheduleConfig schedule = config.train.lr_schedule;
  SCALETRAIN_CHECK(state.warmup.has_value());
  schedule.warmup = state.warmup;
  const double peak = config.train.optimizer.learning_rate;
  const std::int64_t total = std::max<std::int64_t>(1, last_step(config, state));
  const std::int64_t update = std::min(state.step + 1, total);
  const std::int64_t start = std::max<std::int64_t>(*state.warmup, 1);
  if (config.train.steps || update <= start) return learning_rate(schedule, peak, update, total);
  const std::int64_t batch = config.train.global_batch;
  const std::int64_t before = state.history.samples_consumed();
  const std::int64_t warm = state.history.samples_of_steps(start);
  const std::int64_t end = checked_add(before, checked_mul(std::max<std::int64_t>(total - state.step, 1), batch));
  return decayed_rate(schedule, peak, static_cast<double>(before + batch - warm) / static_cast<double>(end - warm));
}

std::string length_key(const Config& config) {
  return config.train.steps ? "train.steps" : "train.tokens";
}

}  // namespace scaletrain
