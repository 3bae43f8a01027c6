#include "optim/loss_scale.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace scaletrain {

std::optional<LossScaleState> continue_loss_scale(const std::optional<LossScaleState>& before,
                                                  const PrecisionConfig& precision) {
  if (precision.compute != Precision::fp16 || precision.loss_scale) return std::nullopt;
  return before.value_or(LossScaleState());
}

double loss_scale_of(const PrecisionConfig& precision, const std::optional<LossScaleState>& state) {
  if (precision.compute != Precision::fp16) return 1.0;
  if (precision.loss_scale) return *precision.loss_scale;
  SCALETRAIN_CHECK(state.has_value());
  return state->scale;
}

bool can_fall(const std::optional<LossScaleState>& state) {
  return state && state->scale > least_loss_scale;
}

LossScaleState after_step(const LossScaleState& before, SkipReason reason) {
  switch (reason) {
    case SkipReason::overflow:
      return {.scale = std::max(before.scale / 2, least_loss_scale), .good_steps = 0};
    case SkipReason::nonfinite_gradient:
    case SkipReason::nonfinite_loss:
      return {.scale = before.scale, .good_steps = 0};
    case SkipReason::no_tokens:
      return before;
    case SkipReason::none:
    case SkipReason::spike:
      if (before.good_steps + 1 < good_steps_to_double)
        return {.scale = before.scale, .good_steps = before.good_steps + 1};
      return {.scale = std::min(before.scale * 2, most_loss_scale), .good_steps = 0};
  }
  SCALETRAIN_CHECK(false);
}

std::string loss_scale_text(const PrecisionConfig& precision, const std::optional<LossScaleState>& state) {
  return fmt::format("loss scale {}{}", loss_scale_of(precision, state), state ? " (dynamic)" : "");
}

}  // namespace scaletrain
