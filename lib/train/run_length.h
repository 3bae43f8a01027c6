// How long a run is, and where in its schedule it stands: pure functions of its config and its state, so that every
// rank and every resume comes to the same.
//
// A run is given in optimizer steps or in tokens. In tokens it ends with the step in which the tokens that it has
// trained on reach the number, whatever their batches were: one that changes its global batch half-way trains the other
// half. Its learning rate then follows the samples, so that a change of the batch does not move it.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"
#include "train/run_state.h"

namespace scaletrain {

// The step that the run ends with if it goes on from `state` with this config; at most state.step: it is complete. In
// tokens the steps to come count as full: padding may add some.
std::int64_t last_step(const Config& config, const RunState& state);

// Steps of warm-up with which a run in `state` goes on: what the config names; else what the run began with
// (state.warmup), because the default of another length could take it back into its warm-up; the default where it has
// not begun, or where that is longer than the run now is.
std::int64_t warmup_steps(const Config& config, const RunState& state);

// UserError if the config names a warm-up that is longer than the run that goes on from `state`.
void check_warmup(const Config& config, const RunState& state);

// Of the update that follows `state`, whose warm-up is settled.
double next_learning_rate(const Config& config, const RunState& state);

// "train.steps", or "train.tokens": the key that gives the run its length.
std::string length_key(const Config& config);

}  // namespace scaletrain
