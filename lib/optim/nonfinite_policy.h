// How many steps in a row may have a non-finite loss or gradient (and so be skipped) before training counts as
// diverged.
#pragma once

#include <cstdint>
#include <optional>

#include "base/numbers/strong.h"
#include "optim/step_scalars.h"

namespace scaletrain {

// Part of a checkpoint's scalars: a resume goes on counting.
struct NonfiniteState {
  std::int64_t consecutive = 0;
  std::int64_t total = 0;  // of the whole run
  bool operator==(const NonfiniteState&) const = default;
};

// The state after `step`. A finite step ends the row; a step without tokens says nothing and leaves it as it is, and so
// does an overflow that a smaller loss scale answers.
// DivergedError, which names train.nonfinite.skip, when more than `allowed` steps in a row were non-finite.
// fixed_scale: precision.loss_scale where that is a number; then it is the first to be suspected of gradients.
NonfiniteState after_step(const NonfiniteState& before, SkipReason reason, std::int64_t allowed, Step step,
                          std::optional<double> fixed_scale = {});

}  // namespace scaletrain
