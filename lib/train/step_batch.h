// The batch of a run whose train.global_batch is auto, from step to step. state.batch is the one that follows the
// noise: a step has it, or fewer samples where there are no more, and the run goes on with it where it finds more
// again.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"
#include "train/run_state.h"

namespace scaletrain {

// Behind a step: as the gradient noise scale has it (optim/adaptive_batch.h). Changes state.batch, and returns what it
// tells people of it; empty: the batch stays.
std::string follow_noise(const TrainConfig& train, RunState& state);

// Before a step of so many samples (filled_batch() in data/data_left.h): what it tells people of one that the epoch
// caps leave fewer samples for than state.batch, and than the step before had; else empty.
std::string text_of_fall(const RunState& state, std::int64_t batch);

}  // namespace scaletrain
