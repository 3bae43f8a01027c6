// How long a run is, and where in its schedule it stands: pure functions of its config and its state, so that every
// rank and every resume comes to the same.
//
// A run is given in optimizer steps, in tokens or in epochs. In tokens it ends with the step in which the tokens that
// it has trained on reach the number, whatever their batches were: one that changes its global batch half-way trains
// the other half. Its learning rate then follows the samples, so that a change of the batch does not move it.
//
// In epochs it is the same with samples: the run ends with the step in which those that it has trained on reach so many
// times all samples of its sources, as they are in the mix that it reads (a source that gains files makes it longer).
// Weights decide how often each source is read until then, not when the run ends. Where epoch caps leave those samples
// but no whole batch for the last of them, that step is left out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "config/config.h"
#include "train/run_state.h"

namespace scaletrain {

// The run's training keys as they are for the steps that follow `state`: where the batch is auto, global_batch is the
// one that they begin with.
TrainConfig train_from(const Config& config, const RunState& state);

// The step that the run ends with if it goes on from `state` with this config; at most state.step: it is complete. In
// tokens the steps to come count as full: padding may add some; a batch that is auto, as it stays. In epochs the
// history must have its mix: UserError where a checkpoint of an older program has none, and where they are more samples
// than can be counted.
std::int64_t last_step(const Config& config, const RunState& state);

// Whether last_step() is known: that of a run in epochs is once its data has been opened.
bool has_last_step(const Config& config, const RunState& state);

// Steps of so many epochs of so many samples, of which `consumed` are trained on and the caps leave `left` more
// (nothing: as many as one likes); at most 0: none. UserError as above.
std::int64_t steps_of_epochs(double epochs, std::int64_t samples, std::int64_t consumed,
                             std::optional<std::int64_t> left, std::int64_t global_batch);

// Steps of warm-up with which a run in `state` goes on: what the config names; else what the run began with
// (state.warmup), because the default of another length could take it back into its warm-up; the default where it has
// not begun, or where that is longer than the run now is.
std::int64_t warmup_steps(const Config& config, const RunState& state);

// UserError if the config names a warm-up, or with it a decay, that is longer than the run that goes on from `state`.
void check_warmup(const Config& config, const RunState& state);

// Of the update that follows `state`, whose warm-up is settled: what the schedule says, times its phase's factor.
double next_learning_rate(const Config& config, const RunState& state);

// Updates in which AdEMAMix's slow mean grows to what it is: what the config names, else the run's steps.
std::int64_t slow_warmup(const Config& config, const RunState& state);

// TrainConfig::length_key().
std::string length_key(const Config& config);

}  // namespace scaletrain
