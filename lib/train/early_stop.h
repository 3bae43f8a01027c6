// Early stopping: a small state machine over the values of one metric. Its state is part of every checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "config/config.h"

namespace scaletrain {

// What a loss is the mean over. Losses over other data are not compared.
struct MeasuredOn {
  std::uint64_t data = 0;    // identity of the set, as it is cut and masked
  std::int64_t samples = 0;  // the first so many of it
  bool operator==(const MeasuredOn&) const = default;
};

struct EarlyStopState {
  std::optional<MeasuredOn> measured_on;  // nothing before the first evaluation, and in older checkpoints
  std::optional<double> best;
  std::int64_t best_step = 0;
  std::int64_t without_improvement = 0;  // evaluations since the best
  std::optional<std::string> stopped;    // why, once it has stopped
};

// The set whose loss is the metric; null: early stopping is off, or watches a task.
const ValidationConfig* watched_set(const Config& config);

// The task whose accuracy is the metric; null: early stopping is off, or watches a loss.
const TaskConfig* watched_task(const Config& config);

// The state with which a resume goes on when the config was `before` and is `now`. Another metric (or none) starts
// anew; any other change, of the policy or of what is evaluated, lets a stopped run go on under the new config, which
// judges from the next evaluation. What the files of the set hold now, which lets it go on too, measure_on() finds.
EarlyStopState continue_early_stop(const EarlyStopState& state, const Config& before, const Config& now);

// Right before observe(): what the value to come is measured on. If that is not what the state was measured on, the
// state starts afresh, and the text (for people) says so; else nothing.
std::optional<std::string> measure_on(const MeasuredOn& data, EarlyStopState& state);

struct EarlyStopVerdict {
  bool improved = false;
  bool stop = false;
  std::string reason;  // for people, if stop
};

// Takes in the metric's value after `step` steps. Improved: lower than the best by more than min_delta, or of an
// accuracy higher. Stops after `patience` evaluations without improvement, or at once where the target is reached. A
// value that is not finite is no improvement.
EarlyStopVerdict observe(const EarlyStopConfig& config, EarlyStopState& state, std::int64_t step, double value);

// To and from a checkpoint's scalars (keys "early_stop.*"); from: InputError beginning with `where`.
void write_scalars(const EarlyStopState& state, std::map<std::string, std::string>& scalars);
EarlyStopState read_early_stop(const std::map<std::string, std::string>& scalars, const std::string& where);

}  // namespace scaletrain
