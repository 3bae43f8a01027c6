// How many samples the steps of a run have, which train.batch_ramp lets grow and each of a run's phases may say: a pure
// function of the step, so that neither a resume nor another layout changes a batch.
//
// With n increments of `by` samples from `from` to train.global_batch, the step that follows s ones has
//   from + by · floor(s · n / steps)   samples where s < steps, and train.global_batch else
// (after the ramps of Megatron-LM, which count samples, and of Smith et al. 2018). Without a ramp, or
// with one that validation refuses, all have train.global_batch. Steps and counts are at least 0; sums beyond 63 bits
// are a BugError.
#pragma once

#include <cstdint>
#include <vector>

#include "config/config.h"

namespace scaletrain {

// Of the step that follows `step` ones.
std::int64_t batch_of_step(const TrainConfig& train, std::int64_t step);
// Of `count` steps from there on.
std::int64_t samples_from(const TrainConfig& train, std::int64_t step, std::int64_t count);
// The same steps as stretches of ones with the same number of samples, in their order.
struct BatchStretch {
  std::int64_t steps = 0;
  std::int64_t batch = 0;
};
std::vector<BatchStretch> batch_stretches(const TrainConfig& train, std::int64_t step, std::int64_t count);
// The fewest steps from there on that have at least so many samples.
std::int64_t steps_to_samples(const TrainConfig& train, std::int64_t step, std::int64_t samples);

}  // namespace scaletrain
