// Early stopping: a small state machine over the values of one metric. Its state is part of every checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "config/config.h"

namespace scaletrain {

struct EarlyStopState {
  std::optional<double> best;
  std::int64_t best_step = 0;
  std::int64_t without_improvement = 0;  // evaluations since the best
  std::optional<std::string> stopped;    // why, once it has stopped
};

// The state with which a resume goes on when the policy was `before` and is `now`. Another metric (or none) starts
// anew; any other change lets a stopped run go on under the new policy, which judges from the next evaluation.
EarlyStopState continue_early_stop(const EarlyStopState& state, const std::optional<EarlyStopConfig>& before,
                                   const std::optional<EarlyStopConfig>& now);

struct EarlyStopVerdict {
  bool improved = false;
  bool stop = false;
  std::string reason;  // for people, if stop
};

// Takes in the metric's value after `step` steps. Improved: lower than the best by more than min_delta. Stops after
// `patience` evaluations without improvement, or at once at or below the target. A value that is not finite is no
// improvement.
EarlyStopVerdict observe(const EarlyStopConfig& config, EarlyStopState& state, std::int64_t step, double value);

// To and from a checkpoint's scalars (keys "early_stop.*"); from: InputError beginning with `where`.
void write_scalars(const EarlyStopState& state, std::map<std::string, std::string>& scalars);
EarlyStopState read_early_stop(const std::map<std::string, std::string>& scalars, const std::string& where);

}  // namespace scaletrain
