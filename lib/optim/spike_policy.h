// What counts as a spike of the training loss, and how often training may go back because of one.
//
// A step's loss x is measured against the last `window` losses that were no spikes: with their mean m and standard
// deviation s (population: the sum of squared distances divided by the window, then its root), x is a spike when its
// standard score
//
//   z = (x - m) / max(s, 1e-3 |m|)
//
// is above `zscore`. Only jumps upward count. The floor keeps a loss that has come to rest from making every small
// movement a spike. There is no verdict before the window is full. A spike's loss does not enter the window, and
// neither does that of a step without tokens or with anything that is not finite.
//
// `window` spikes in a row are no spike but the level that training has now: the window begins anew.
//
// Everything here is pure: all ranks have the same losses and so the same verdicts, and the state is part of every
// checkpoint, so a resume decides the same. Going back to an earlier state and leaving out the samples on the way to
// the spike is what Chowdhery et al., "PaLM" (2022), section 5.1, do.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/numbers/strong.h"
#include "config/config.h"

namespace scaletrain {

struct SpikeState {
  std::vector<double> losses;  // the window, oldest first
  std::int64_t row = 0;        // spikes in a row until now
  std::int64_t rollbacks = 0;  // since training last came beyond `furthest`
  std::int64_t furthest = 0;   // step of the furthest spike that was gone back from
  bool operator==(const SpikeState&) const = default;
};

// What a loss is measured against.
struct LossLevel {
  double mean = 0;
  double deviation = 0;  // with its floor
  double limit = 0;      // a loss above it is a spike
  double score(double loss) const { return (loss - mean) / deviation; }
};

// Nothing before the window is full.
std::optional<LossLevel> loss_level(const SpikeConfig& config, const SpikeState& state);

// The state after `step`, whose loss is finite.
SpikeState after_loss(const SpikeConfig& config, SpikeState state, Step step, double loss);

// Rollbacks in a row that do not lead beyond the step of the furthest spike.
inline constexpr std::int64_t most_rollbacks = 3;
// The state with which training goes on after the spike at `step`: the window is `restored`, the checkpoint's, the
// count goes on from `before`. DivergedError, which names train.spike, when the rollbacks are used up; asked before
// anything is given up.
SpikeState after_rollback(const SpikeState& before, SpikeState restored, Step step);
void require_rollback(const SpikeState& before, Step step);

}  // namespace scaletrain
