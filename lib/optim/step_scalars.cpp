#include "optim/step_scalars.h"

#include <cmath>

#include "base/error.h"

namespace scaletrain {

std::string_view to_text(SkipReason reason) {
  switch (reason) {
    case SkipReason::none:
      return "none";
    case SkipReason::nonfinite_gradient:
      return "nonfinite_gradient";
    case SkipReason::nonfinite_loss:
      return "nonfinite_loss";
    case SkipReason::no_tokens:
      return "no_tokens";
    case SkipReason::overflow:
      return "overflow";
    case SkipReason::spike:
      return "spike";
  }
  SCALETRAIN_CHECK(false);
}

std::string_view words_of(SkipReason reason) {
  switch (reason) {
    case SkipReason::none:
      return "it was not";
    case SkipReason::nonfinite_gradient:
      return "its gradient is not finite (inf or nan)";
    case SkipReason::nonfinite_loss:
      return "its loss is not finite (inf or nan)";
    case SkipReason::no_tokens:
      return "its samples hold no token to learn from";
    case SkipReason::overflow:
      return "its gradients overflowed at this loss scale";
    case SkipReason::spike:
      return "its loss jumped (train.spike)";
  }
  SCALETRAIN_CHECK(false);
}

void set_bias_corrections(StepScalars& block, double beta1, double beta2, std::int64_t update) {
  SCALETRAIN_CHECK_LE(1, update);
  block.bias_correction1 = 1.0 - std::pow(beta1, static_cast<double>(update));
  block.bias_correction2 = 1.0 - std::pow(beta2, static_cast<double>(update));
}

StepOutcome make_step_scalars(const StepMeasurements& measured, const StepSettings& settings) {
  SCALETRAIN_CHECK_LE(0, measured.num_tokens);
  SCALETRAIN_CHECK(std::isfinite(measured.micro_scale) && measured.micro_scale > 0);
  SCALETRAIN_CHECK(!settings.clip_norm || *settings.clip_norm > 0);

  const double tokens = static_cast<double>(measured.num_tokens);
  const bool has_tokens = measured.num_tokens > 0;
  const double summed_norm = std::sqrt(measured.sum_of_squares);
  StepOutcome outcome;
  outcome.grad_norm = has_tokens ? summed_norm / (tokens * measured.micro_scale) : summed_norm;
  outcome.loss = has_tokens ? measured.loss_sum / tokens : measured.loss_sum;
  if (!std::isfinite(outcome.grad_norm)) {
    const bool is_overflow = settings.scale_can_fall && std::isfinite(outcome.loss);
    outcome.skip = is_overflow ? SkipReason::overflow : SkipReason::nonfinite_gradient;
  } else if (!std::isfinite(outcome.loss)) {
    outcome.skip = SkipReason::nonfinite_loss;
  } else if (!has_tokens) {
    outcome.skip = SkipReason::no_tokens;
  } else if (settings.loss_limit && outcome.loss > *settings.loss_limit) {
    outcome.skip = SkipReason::spike;
  }

  StepScalars& block = outcome.block;
  block.learning_rate = settings.learning_rate;
  block.slow_beta = settings.slow.beta;
  block.slow_weight = settings.slow.weight;
  set_bias_corrections(block, settings.beta1, settings.beta2, settings.update);
  if (outcome.skip != SkipReason::none) {
    block.skip = 1;
    block.gradient_scale = 0;
    return outcome;
  }
  const bool is_clipped = settings.clip_norm && outcome.grad_norm > *settings.clip_norm;
  const double clip = is_clipped ? *settings.clip_norm / outcome.grad_norm : 1.0;
  block.gradient_scale = clip / (tokens * measured.micro_scale);
  return outcome;
}

}  // namespace scaletrain
