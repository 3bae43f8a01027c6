#include "train/run_length.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "config/batch_ramp.h"
#include "config/phases.h"
#include "optim/lr_schedule.h"

namespace scaletrain {

namespace {

std::int64_t last_step_of_epochs(const Config& config, const RunState& state) {
  const Mix& mix = state.history.mix();
  if (mix.sources.empty())
    throw UserError(
        "train.epochs: the checkpoint is of an older program, which did not note how many samples its data has; go on "
        "with train.steps or train.tokens");
  std::int64_t samples = 0;
  std::optional<std::int64_t> left = 0;  // by the caps
  for (const MixSource& source : mix.sources) {
    samples = checked_add(samples, source.samples_per_epoch);
    left = left && source.cap ? std::optional(checked_add(*left, std::max<std::int64_t>(0, *source.cap - source.taken)))
                              : std::nullopt;
  }
  if (left) *left = std::max<std::int64_t>(0, *left - (state.history.next_sample() - mix.first_sample));
  return checked_add(state.step, steps_of_epochs(*config.train.epochs, samples, state.history.samples_consumed(), left,
                                                 config.train.global_batch));
}

}  // namespace

TrainConfig train_from(const Config& config, const RunState& state) {
  TrainConfig train = config.train;
  if (train.adapts_batch) train.global_batch = state.batch.value_or(train.batch_auto->min);
  return train;
}

std::int64_t steps_of_epochs(double epochs, std::int64_t samples, std::int64_t consumed,
                             std::optional<std::int64_t> left, std::int64_t global_batch) {
  const double all = std::round(epochs * static_cast<double>(samples));
  if (all >= static_cast<double>(kMostCounted))
    throw UserError(fmt::format("train.epochs: {} times {} samples are more than can be counted", epochs, samples));
  // Less than a sample is one.
  const std::int64_t wanted = std::max<std::int64_t>(1, static_cast<std::int64_t>(all)) - consumed;
  if (wanted <= 0) return 0;
  // A run of no step at all is no shorter one: its first step is refused.
  const bool may_be_shorter = consumed > 0 || (left && *left >= global_batch);
  if (left && may_be_shorter && *left >= wanted && *left < checked_mul(ceil_div(wanted, global_batch), global_batch))
    return *left / global_batch;
  return ceil_div(wanted, global_batch);
}

bool has_last_step(const Config& config, const RunState& state) {
  return !config.train.epochs || !state.history.mix().sources.empty();
}

std::int64_t last_step(const Config& config, const RunState& state) {
  const TrainConfig& train = config.train;
  if (train.steps) return *train.steps;
  if (train.epochs) return last_step_of_epochs(config, state);
  SCALETRAIN_CHECK(train.tokens.has_value());
  const std::int64_t left = *train.tokens - state.history.tokens_consumed();
  if (left <= 0) return state.step;
  return checked_add(state.step,
                     steps_to_samples(train_from(config, state), state.step, ceil_div(left, config.model.context)));
}

std::int64_t warmup_steps(const Config& config, const RunState& state) {
  if (config.train.lr_schedule.warmup) return *config.train.lr_schedule.warmup;
  // The steps of a run whose batch is auto are known for as long as it stays.
  if (config.train.adapts_batch && state.warmup) return *state.warmup;
  const std::int64_t steps = last_step(config, state);
  return state.warmup && *state.warmup <= steps ? *state.warmup : default_warmup(steps);
}

void check_warmup(const Config& config, const RunState& state) {
  if (!has_last_step(config, state) || (config.train.adapts_batch && state.step > 0)) return;
  const LrScheduleConfig& schedule = config.train.lr_schedule;
  const std::int64_t steps = last_step(config, state);
  if (schedule.warmup && *schedule.warmup > steps)
    throw UserError(
        fmt::format("train.lr_schedule.warmup: warm-up of {} steps exceeds the run's {} steps; lower it, leave it out "
                    "(auto) or raise {}",
                    *schedule.warmup, steps, length_key(config)));
  const std::int64_t left = steps - schedule.warmup.value_or(0);
  if (schedule.type == LrScheduleKind::wsd && schedule.decay_steps && *schedule.decay_steps > left)
    throw UserError(
        fmt::format("train.lr_schedule.decay_steps: a decay of {} steps is longer than the {} that the run has behind "
                    "its warm-up; lower it, give train.lr_schedule.decay_share or raise {}",
                    *schedule.decay_steps, left, length_key(config)));
}

namespace {

double scheduled_rate(const Config& config, const RunState& state) {
  LrScheduleConfig schedule = config.train.lr_schedule;
  SCALETRAIN_CHECK(state.warmup.has_value());
  schedule.warmup = state.warmup;
  const TrainConfig train = train_from(config, state);
  const double peak = peak_learning_rate(train.optimizer, train.global_batch);
  const std::int64_t total = std::max<std::int64_t>(1, last_step(config, state));
  const std::int64_t update = std::min(state.step + 1, total);
  const std::int64_t start = std::max<std::int64_t>(*state.warmup, 1);
  if (config.train.steps || update <= start) return learning_rate(schedule, peak, update, total);
  const std::int64_t batch = batch_of_step(train, state.step);
  const std::int64_t before = state.history.samples_consumed();
  const std::int64_t warm = state.history.samples_of_steps(start);
  const std::int64_t end =
      checked_add(before, samples_from(train, state.step, std::max<std::int64_t>(total - state.step, 1)));
  return decayed_rate(schedule, peak,
                      {.done = static_cast<double>(before + batch - warm),
                       .whole = static_cast<double>(end - warm),
                       .warmup = static_cast<double>(warm),
                       .update = static_cast<double>(config.train.global_batch)});
}

}  // namespace

double next_learning_rate(const Config& config, const RunState& state) {
  return scheduled_rate(config, state) * phase_of_step(config, state.step).learning_rate_factor;
}

std::int64_t slow_warmup(const Config& config, const RunState& state) {
  const OptimizerConfig& optimizer = config.train.optimizer;
  if (optimizer.type != OptimizerKind::ademamix) return 0;
  return optimizer.slow_warmup ? *optimizer.slow_warmup : last_step(config, state);
}

std::string length_key(const Config& config) {
  return config.train.length_key();
}

}  // namespace scaletrain
