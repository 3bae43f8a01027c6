#include "optim/nonfinite_policy.h"

#include <fmt/format.h>

#include "base/error.h"

namespace scaletrain {

NonfiniteState after_step(const NonfiniteState& before, SkipReason reason, std::int64_t allowed, Step step) {
  NonfiniteState after = before;
  switch (reason) {
    case SkipReason::none:
    case SkipReason::spike:
      after.consecutive = 0;
      return after;
    case SkipReason::no_tokens:
    case SkipReason::overflow:
      return after;
    case SkipReason::nonfinite_gradient:
    case SkipReason::nonfinite_loss:
      ++after.consecutive;
      ++after.total;
      if (after.consecutive <= allowed) return after;
      throw DivergedError(fmt::format(
          "step {}: {} is not finite, number {} of such steps in a row; train.nonfinite.skip allows {}. Lower "
          "train.optimizer.learning_rate, lengthen train.lr_schedule.warmup, or look at the data of these steps",
          step.value(), reason == SkipReason::nonfinite_loss ? "the loss" : "the gradient norm", after.consecutive,
          allowed));
  }
  SCALETRAIN_CHECK(false);
}

}  // namespace scaletrain
