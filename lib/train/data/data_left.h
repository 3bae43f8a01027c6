// Whether the training data suffices for what is left of a run: a mix whose sources all have an epoch cap ends.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"
#include "data/dataset.h"
#include "train/run_state.h"

namespace scaletrain {

// How many samples of an epoch are looked up, one by one, to count what they train on: some seconds' worth. Beyond that
// it is bounded by what the whole epoch trains on, and a run whose budget lies within the bounds begins.
inline constexpr std::int64_t most_looked_up = std::int64_t{1} << 24;

// Why the samples that follow `state`, whose history is that of `data`, do not suffice for the rest of the run, and
// what helps; empty: they do, or may. Of a run in tokens it counts what the samples of whole steps train on: they have
// padding, so that it may take more steps than last_step() tells, which counts them as full.
std::string data_shortage(const TrainingData& data, const Config& config, const RunState& state,
                          std::int64_t looked_up = most_looked_up);

// Of a run whose batch is auto: that of the step which follows `state`. It is the state's, or where the epoch caps
// leave fewer samples the largest size that these fill; `min` where they fill none. Sizes are `min` doubled, so that a
// run comes to every sample to which steps of `min` would come, however its batch grows before.
std::int64_t filled_batch(const TrainingData& data, const TrainConfig& train, const RunState& state);

// Whether the step that follows `state` has all its samples.
bool has_next_batch(const TrainingData& data, const RunState& state);

}  // namespace scaletrain
