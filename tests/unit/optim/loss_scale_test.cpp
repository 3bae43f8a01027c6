#include "optim/loss_scale.h"

#include <doctest/doctest.h>

#include <vector>

using namespace scaletrain;

namespace {

PrecisionConfig precision_of(Precision compute, std::optional<double> loss_scale = {}) {
  PrecisionConfig precision;
  precision.compute = compute;
  precision.loss_scale = loss_scale;
  return precision;
}

const PrecisionConfig dynamic = precision_of(Precision::fp16);

LossScaleState after_good_steps(LossScaleState state, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) state = after_step(state, SkipReason::none);
  return state;
}

}  // namespace

TEST_CASE("the loss scale begins at 65536, is halved by an overflow and doubled by 2000 good steps in a row") {
  LossScaleState state = continue_loss_scale(std::nullopt, dynamic).value();
  CHECK(state == LossScaleState{.scale = 65536, .good_steps = 0});
  CHECK(loss_scale_of(dynamic, state) == 65536);
  state = after_step(state, SkipReason::overflow);
  CHECK(state == LossScaleState{.scale = 32768, .good_steps = 0});
  state = after_good_steps(state, 1999);
  CHECK(state == LossScaleState{.scale = 32768, .good_steps = 1999});
  CHECK(after_step(state, SkipReason::overflow) == LossScaleState{.scale = 16384, .good_steps = 0});
  CHECK(after_step(state, SkipReason::none) == LossScaleState{.scale = 65536, .good_steps = 0});
  CHECK(after_step(state, SkipReason::spike) == LossScaleState{.scale = 65536, .good_steps = 0});
}

TEST_CASE("what says nothing of overflow leaves the loss scale, and a loss that is not finite ends the row") {
  const LossScaleState state{.scale = 256, .good_steps = 1999};
  CHECK(after_step(state, SkipReason::no_tokens) == state);
  for (const SkipReason reason : {SkipReason::nonfinite_loss, SkipReason::nonfinite_gradient})
    CHECK(after_step(state, reason) == LossScaleState{.scale = 256, .good_steps = 0});
}

TEST_CASE("the loss scale stays between 1 and 2^24, and overflows at 1 are no longer its matter") {
  std::optional<LossScaleState> state = LossScaleState{.scale = 4};
  std::vector<double> scales;
  while (can_fall(state)) {
    state = after_step(*state, SkipReason::overflow);
    scales.push_back(state->scale);
  }
  CHECK(scales == std::vector<double>{2, 1});
  CHECK(after_step(*state, SkipReason::overflow).scale == 1);
  CHECK(after_good_steps({.scale = 8388608}, 2000) == LossScaleState{.scale = 16777216});
  CHECK(after_good_steps({.scale = 16777216}, 2000) == LossScaleState{.scale = 16777216});
  CHECK_FALSE(can_fall(std::nullopt));
}

TEST_CASE("only fp16 has a loss scale, and a number in the config is it") {
  const LossScaleState known{.scale = 128, .good_steps = 7};
  CHECK(continue_loss_scale(known, dynamic) == known);
  CHECK(loss_scale_text(dynamic, known) == "loss scale 128 (dynamic)");
  const PrecisionConfig fixed = precision_of(Precision::fp16, 1536);
  CHECK_FALSE(continue_loss_scale(known, fixed));
  CHECK(loss_scale_of(fixed, std::nullopt) == 1536);
  CHECK(loss_scale_text(fixed, std::nullopt) == "loss scale 1536");
  for (const Precision compute : {Precision::fp32, Precision::bf16}) {
    CHECK_FALSE(continue_loss_scale(known, precision_of(compute)));
    CHECK(loss_scale_of(precision_of(compute), std::nullopt) == 1);
  }
}
