// The batch of a run whose train.global_batch is auto, from step to step. Both change state.batch, and return what they
// tell people of it; empty: the batch stays.
#pragma once

#include <string>

#include "config/config.h"
#include "data/dataset.h"
#include "train/run_state.h"

namespace scaletrain {

// Behind a step: as the gradient noise scale has it (optim/adaptive_batch.h).
std::string follow_noise(const TrainConfig& train, RunState& state);

// Before a step: the epoch caps may leave fewer samples than it has (filled_batch() in data/data_left.h).
std::string fit_to_data(const TrainingData& data, const TrainConfig& train, RunState& state);

}  // namespace scaletrain
