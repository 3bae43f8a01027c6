// The numbers that the update kernels read, from what a step measured. Pure.
//
// The loss is the mean over all n unmasked target tokens of the global batch. Micro-batches do not know n: each
// back-propagates the sum over its tokens times a constant c of the plan (for example 1 / (global_batch · context)), so
// the summed gradient is G = c · n · g, where g is the gradient of the mean. Here n is known: ‖g‖ = ‖G‖ / (c · n), and
// the update's gradient_scale turns G into g, clipped to `clip_norm` in the same product. In fp16 c is the plan's
// constant times the loss scale (loss_scale.h), which so leaves the update with it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "backend/operations.h"
#include "optim/slow_mean.h"

namespace scaletrain {

struct StepMeasurements {
  double sum_of_squares = 0;    // of G, over the whole model
  double loss_sum = 0;          // over the n tokens, not scaled
  std::int64_t num_tokens = 0;  // n, of the global batch
  double micro_scale = 1;       // c, loss scale included
};

struct StepSettings {
  double learning_rate = 0;
  std::optional<double> clip_norm;  // nothing: no clipping
  double beta1 = 0.9;
  double beta2 = 0.95;
  SlowMean slow{};          // of AdEMAMix at this update
  std::int64_t update = 1;  // number of this update among those made: a skipped step leaves it for the next one
  std::optional<double> loss_limit{};  // a step whose loss is above it is skipped; nothing: none is
  double loss_scale = 1;               // that micro-batches back-propagate with, times the plan's constant
  bool scale_can_fall = false;         // gradients that are not finite while the loss is are an overflow then
};

enum class SkipReason {
  none,
  nonfinite_gradient,
  nonfinite_loss,
  no_tokens,  // every target of the global batch is masked: there is nothing to learn from, and nothing wrong
  overflow,   // gradients beyond fp16 at this loss scale, which a smaller one may mend (loss_scale.h)
  spike,      // the loss is above the limit that the step was given (spike_policy.h)
};
std::string_view to_text(SkipReason reason);
// Why a step was skipped, in words for people.
std::string_view words_of(SkipReason reason);

struct StepOutcome {
  StepScalars block;
  double loss = 0;       // mean over tokens; 0 without tokens
  double grad_norm = 0;  // of g, before clipping; may be infinite or NaN
  SkipReason skip = SkipReason::none;
};

// What Adam's averages lack at their update-th update, from 1 on.
void set_bias_corrections(StepScalars& block, double beta1, double beta2, std::int64_t update);

StepOutcome make_step_scalars(const StepMeasurements& measured, const StepSettings& settings);

}  // namespace scaletrain
