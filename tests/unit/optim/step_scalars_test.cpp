#include "optim/step_scalars.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "support/near.h"

using namespace scaletrain;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// 40 tokens, back-propagated with 1/64: the gradient of the mean has norm 30 / (40/64) = 48.
StepMeasurements measured() {
  return {.sum_of_squares = 900, .loss_sum = 120, .num_tokens = 40, .micro_scale = 1.0 / 64};
}

}  // namespace

TEST_CASE("why a step was skipped is told in words, not in the names of the metrics") {
  for (const SkipReason reason : {SkipReason::nonfinite_gradient, SkipReason::nonfinite_loss, SkipReason::no_tokens,
                                  SkipReason::overflow, SkipReason::spike})
    CHECK(words_of(reason).find('_') == std::string_view::npos);
  CHECK(words_of(SkipReason::nonfinite_gradient) == "its gradient is not finite (inf or nan)");
}

TEST_CASE("the loss and the gradient are means over the unmasked tokens, whatever the plan's constant") {
  const StepOutcome outcome = make_step_scalars(measured(), {.learning_rate = 0.5, .clip_norm = {}, .update = 3});
  CHECK(outcome.skip == SkipReason::none);
  CHECK(outcome.loss == 3.0);
  CHECK(outcome.grad_norm == Near(48.0));
  CHECK(outcome.block.gradient_scale == Near(64.0 / 40.0));
  CHECK(outcome.block.learning_rate == 0.5);
  CHECK(outcome.block.skip == 0);
  // Another constant scales the gradient by it and changes nothing else.
  StepMeasurements other = measured();
  other.micro_scale = 1.0;
  other.sum_of_squares = 900.0 * 64 * 64;
  const StepOutcome same = make_step_scalars(other, {.learning_rate = 0.5, .clip_norm = {}, .update = 3});
  CHECK(same.grad_norm == Near(48.0));
  CHECK(same.block.gradient_scale * 64 == Near(outcome.block.gradient_scale));
}

TEST_CASE("clipping scales a long gradient to the limit and leaves a short one alone") {
  const StepOutcome clipped = make_step_scalars(measured(), {.learning_rate = 1, .clip_norm = 12.0});
  CHECK(clipped.grad_norm == Near(48.0));  // reported as it was
  CHECK(clipped.block.gradient_scale * 30 == Near(12.0));
  const StepOutcome alone = make_step_scalars(measured(), {.learning_rate = 1, .clip_norm = 48.5});
  CHECK(alone.block.gradient_scale * 30 == Near(48.0));
}

TEST_CASE("bias corrections follow the number of the update") {
  const StepOutcome first = make_step_scalars(measured(), {.clip_norm = {}, .beta1 = 0.9, .beta2 = 0.99, .update = 1});
  CHECK(first.block.bias_correction1 == Near(0.1));
  CHECK(first.block.bias_correction2 == Near(0.01));
  const StepOutcome third = make_step_scalars(measured(), {.clip_norm = {}, .beta1 = 0.9, .beta2 = 0.99, .update = 3});
  CHECK(third.block.bias_correction1 == Near(1 - 0.729));
  CHECK(third.block.bias_correction2 == Near(1 - 0.970299));
  CHECK_THROWS_AS(make_step_scalars(measured(), {.clip_norm = {}, .update = 0}), BugError);
}

TEST_CASE("a gradient or loss that is not finite skips the update, with its reason") {
  for (const double bad : {infinity, std::nan("")}) {
    StepMeasurements gradient = measured();
    gradient.sum_of_squares = bad;
    const StepOutcome skipped = make_step_scalars(gradient, {.learning_rate = 1, .clip_norm = 1.0});
    CHECK(skipped.skip == SkipReason::nonfinite_gradient);
    CHECK(skipped.block.skip == 1);
    CHECK(std::isfinite(skipped.block.gradient_scale));
    StepMeasurements loss = measured();
    loss.loss_sum = bad;
    CHECK(make_step_scalars(loss, {.clip_norm = {}}).skip == SkipReason::nonfinite_loss);
    CHECK(make_step_scalars(loss, {.clip_norm = {}}).block.skip == 1);
  }
}

TEST_CASE("a gradient that is not finite is an overflow where the loss is finite and its scale can fall") {
  for (const double bad : {infinity, std::nan("")}) {
    StepMeasurements of = measured();
    of.sum_of_squares = bad;
    const StepOutcome overflow = make_step_scalars(of, {.learning_rate = 1, .clip_norm = 1.0, .scale_can_fall = true});
    CHECK(overflow.skip == SkipReason::overflow);
    CHECK(overflow.block.skip == 1);
    CHECK(overflow.block.gradient_scale == 0);
    CHECK(to_text(overflow.skip) == "overflow");
    CHECK(make_step_scalars(of, {.clip_norm = {}, .scale_can_fall = false}).skip == SkipReason::nonfinite_gradient);
    of.loss_sum = bad;
    CHECK(make_step_scalars(of, {.clip_norm = {}, .scale_can_fall = true}).skip == SkipReason::nonfinite_gradient);
  }
  StepMeasurements loss = measured();
  loss.loss_sum = infinity;
  CHECK(make_step_scalars(loss, {.clip_norm = {}, .scale_can_fall = true}).skip == SkipReason::nonfinite_loss);
  CHECK(make_step_scalars(measured(), {.clip_norm = {}, .scale_can_fall = true}).skip == SkipReason::none);
}

TEST_CASE("a batch whose targets are all masked skips the update without being an error") {
  const StepOutcome outcome =
      make_step_scalars({.sum_of_squares = 0, .loss_sum = 0, .num_tokens = 0, .micro_scale = 0.5}, {.clip_norm = 1.0});
  CHECK(outcome.skip == SkipReason::no_tokens);
  CHECK(outcome.block.skip == 1);
  CHECK(outcome.loss == 0.0);
  CHECK(outcome.grad_norm == 0.0);
  CHECK(to_text(outcome.skip) == "no_tokens");
}

TEST_CASE("a gradient of zero is an update like any other") {
  const StepOutcome outcome = make_step_scalars({.sum_of_squares = 0, .loss_sum = 1, .num_tokens = 4, .micro_scale = 1},
                                                {.learning_rate = 1, .clip_norm = 1.0});
  CHECK(outcome.skip == SkipReason::none);
  CHECK(outcome.block.gradient_scale == 0.25);
}

TEST_CASE("a loss above the limit skips the update, and one at the limit or without one does not") {
  const double loss = make_step_scalars(measured(), {.clip_norm = {}}).loss;
  const auto skip_at = [](const StepMeasurements& of, std::optional<double> limit) {
    return make_step_scalars(of, {.learning_rate = 1, .clip_norm = {}, .loss_limit = limit}).skip;
  };
  CHECK(skip_at(measured(), {}) == SkipReason::none);
  CHECK(skip_at(measured(), loss) == SkipReason::none);
  CHECK(skip_at(measured(), std::nextafter(loss, 0.0)) == SkipReason::spike);
  CHECK(to_text(SkipReason::spike) == "spike");
  const StepOutcome outcome = make_step_scalars(measured(), {.learning_rate = 1, .clip_norm = {}, .loss_limit = 0.0});
  CHECK(outcome.block.skip == 1);
  CHECK(outcome.block.gradient_scale == 0.0);
  CHECK(outcome.loss == loss);
  // What is not finite, or not there, is no spike.
  StepMeasurements bad = measured();
  bad.sum_of_squares = infinity;
  CHECK(skip_at(bad, 0.0) == SkipReason::nonfinite_gradient);
  bad = measured();
  bad.loss_sum = infinity;
  CHECK(skip_at(bad, 0.0) == SkipReason::nonfinite_loss);
  CHECK(skip_at({.sum_of_squares = 0, .loss_sum = 0, .num_tokens = 0, .micro_scale = 1}, -1.0) ==
        SkipReason::no_tokens);
}
