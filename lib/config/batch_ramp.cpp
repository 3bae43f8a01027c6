#include "config/batch_ramp.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "config/phases.h"

namespace scaletrain {

namespace {

// Notices are made of configs that are refused, too.
bool has_ramp(const TrainConfig& train) {
  if (!train.batch_ramp) return false;
  const auto& [from, by, steps] = *train.batch_ramp;
  return from >= 1 && by >= 1 && steps >= 1 && from < train.global_batch && (train.global_batch - from) % by == 0;
}

std::int64_t num_increments(const TrainConfig& train) {
  return div_exact(train.global_batch - train.batch_ramp->from, train.batch_ramp->by);
}

// The first step behind `step` that may have another batch than it; nothing once the ramp is over, or in the last
// phase.
std::optional<std::int64_t> next_change(const TrainConfig& train, std::int64_t step) {
  if (!train.phases.empty()) {
    const PhasePlace place = place_in_phases(train, step);
    return place.index + 1 < train.phases.size() ? std::optional(place.end) : std::nullopt;
  }
  if (!has_ramp(train) || step >= train.batch_ramp->steps) return std::nullopt;
  const std::int64_t increments = num_increments(train);
  const std::int64_t level = checked_mul(step, increments) / train.batch_ramp->steps;
  return ceil_div(checked_mul(level + 1, train.batch_ramp->steps), increments);
}

// visit(steps, batch), for each stretch of steps with the same batch.
template <class Visit>
void visit_stretches(const TrainConfig& train, std::int64_t step, std::int64_t count, Visit visit) {
  SCALETRAIN_CHECK_LE(0, count);
  const std::int64_t end = checked_add(step, count);
  while (step < end) {
    const std::int64_t until = std::min(end, next_change(train, step).value_or(end));
    visit(until - step, batch_of_step(train, step));
    step = until;
  }
}

}  // namespace

std::int64_t batch_of_step(const TrainConfig& train, std::int64_t step) {
  SCALETRAIN_CHECK_LE(0, step);
  if (!train.phases.empty())
    return train.phases[place_in_phases(train, step).index].global_batch.value_or(train.global_batch);
  const std::optional<BatchRampConfig>& ramp = train.batch_ramp;
  if (!has_ramp(train) || step >= ramp->steps) return train.global_batch;
  return ramp->from + ramp->by * (checked_mul(step, num_increments(train)) / ramp->steps);
}

std::int64_t samples_from(const TrainConfig& train, std::int64_t step, std::int64_t count) {
  std::int64_t samples = 0;
  visit_stretches(train, step, count, [&](std::int64_t steps, std::int64_t batch) {
    samples = checked_add(samples, checked_mul(steps, batch));
  });
  return samples;
}

std::vector<BatchStretch> batch_stretches(const TrainConfig& train, std::int64_t step, std::int64_t count) {
  std::vector<BatchStretch> stretches;
  visit_stretches(train, step, count, [&](std::int64_t steps, std::int64_t batch) {
    stretches.push_back({.steps = steps, .batch = batch});
  });
  return stretches;
}

std::int64_t steps_to_samples(const TrainConfig& train, std::int64_t step, std::int64_t samples) {
  std::int64_t steps = 0;
  while (samples > 0) {
    const std::int64_t batch = batch_of_step(train, step);
    const std::int64_t wanted = ceil_div(samples, batch);
    const std::optional<std::int64_t> change = next_change(train, step);
    const std::int64_t here = change ? std::min(wanted, *change - step) : wanted;
    samples -= std::min(samples, checked_mul(here, batch));
    step = checked_add(step, here);
    steps = checked_add(steps, here);
  }
  return steps;
}

}  // namespace scaletrain
