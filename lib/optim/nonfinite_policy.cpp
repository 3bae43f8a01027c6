#include "optim/nonfinite_policy.h"

#include <fmt/format.h>

#include "base/error.h"

namespace scaletrain {

NonfiniteState after_step(const NonfiniteState& before, SkipReason reason, std::int64_t allowed, Step step,
                          std::optional<double> fixed_scale) {
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
          "step {}: {} is not finite, number {} of such steps in a row; train.nonfinite.skip allows {}. {}ower "
          "train.optimizer.learning_rate, lengthen train.lr_schedule.warmup, or look at the data of these steps",
          step.value(), reason == SkipReason::nonfinite_loss ? "the loss" : "the gradient norm", after.consecutive,
          allowed,
          fixed_scale && reason == SkipReason::nonfinite_gradient
              ? fmt::format("Lower precision.loss_scale, which is {}, or take dynamic; else l", *fixed_scale)
              : "L"));
  }
  SCALETRAIN_CHECK(false);
}

}  // namespace scaletrain
