// The loss scale of fp16 on several ranks: overflow that one rank has or all have, and scales that change nothing.
#include "optim/loss_scale.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "trap_runs.h"

using namespace scaletrain;

namespace {

using RankState = std::vector<std::vector<double>>;

const TrapLayout& eight_ranks() {
  static const TrapLayout layout{"", 2, 2, 2};
  return layout;
}

StepSettings scaled_settings(std::int64_t update, double scale) {
  return {.learning_rate = 1e-2,
          .clip_norm = 1.0,
          .beta1 = 0.9,
          .beta2 = 0.95,
          .update = update,
          .loss_scale = scale,
          .scale_can_fall = false};
}

// Steps 0, 1, 2 ... with these scales.
std::vector<RankState> train_with_scales(const Config& config, const std::vector<double>& scales) {
  const PhasePlan plan = make_test_plan(config, TestBackend::cpu_f16);
  return on_ranks<RankState>(
      config, plan,
      [&](RankTrainer& trainer, Rank, InProcessWorld&) {
        for (std::size_t step = 0; step < scales.size(); ++step) {
          trainer.source().set_step(static_cast<std::int64_t>(step));
          const auto update = static_cast<std::int64_t>(step) + 1;
          trainer.runner().step(trainer.source(), scaled_settings(update, scales[step]));
        }
        return state_of(trainer);
      },
      TestBackend::cpu_f16);
}

struct ScaledAnswer {
  std::vector<SkipReason> skips;  // of every attempt
  std::vector<double> scales;     // that they were made with
  std::vector<RankState> states;  // behind each, the first one's before it in front
};

// What a trainer does with the state of the loss scale and the number of the update, three updates long.
ScaledAnswer train_dynamically(RankTrainer& trainer, LossScaleState first,
                               const std::function<MicroBatchSource&(std::int64_t attempt)>& source_of) {
  ScaledAnswer answer;
  std::optional<LossScaleState> scale = first;
  answer.states.push_back(state_of(trainer));
  std::int64_t updates = 0;
  for (std::int64_t attempt = 0; updates < 3; ++attempt) {
    REQUIRE(attempt < 30);
    trainer.source().set_step(updates);
    StepSettings settings = scaled_settings(updates + 1, scale->scale);
    settings.scale_can_fall = can_fall(scale);
    const SkipReason skip = trainer.runner().step(source_of(attempt), settings).outcome.skip;
    answer.scales.push_back(scale->scale);
    answer.skips.push_back(skip);
    answer.states.push_back(state_of(trainer));
    scale = after_step(*scale, skip);
    if (skip == SkipReason::none) ++updates;
  }
  return answer;
}

LayoutOutcome run_scaled(const Config& base, TestBackend backend, double scale) {
  LayoutRun run{.config = base, .backend = backend, .steps = 5};
  run.config.precision.loss_scale = scale;
  return run_layout(run);
}

bool is_finite(const RankState& state) {
  return std::all_of(state.begin(), state.end(), [](const std::vector<double>& values) {
    return std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
  });
}

}  // namespace

TEST_CASE("an_overflow_of_one_rank_alone_in_fp16_is_skipped_by_all_who_go_on_at_half_the_scale_as_if_it_had_not_been") {
  for (const std::int64_t zero : {0, 1, 2, 3}) {
    const Config config = eight_ranks().on(trap_config(), zero);
    const auto expected = train_with_scales(config, {4096, 2048, 2048});
    const PhasePlan plan = make_test_plan(config, TestBackend::cpu_f16);
    for (const std::int64_t broken : {0, 5}) {
      CAPTURE(zero);
      CAPTURE(broken);
      const auto answers = on_ranks<ScaledAnswer>(
          config, plan,
          [&](RankTrainer& trainer, Rank rank, InProcessWorld&) {
            OverflowingSource spoilt(trainer.source(), trainer.settled_store(),
                                     std::numeric_limits<double>::infinity());
            return train_dynamically(trainer, {.scale = 4096}, [&](std::int64_t attempt) -> MicroBatchSource& {
              if (attempt == 1 && rank.value() == broken) return spoilt;
              return trainer.source();
            });
          },
          TestBackend::cpu_f16);
      for (std::size_t rank = 0; rank < answers.size(); ++rank) {
        CAPTURE(rank);
        const ScaledAnswer& answer = answers[rank];
        CHECK(answer.skips == std::vector{SkipReason::none, SkipReason::overflow, SkipReason::none, SkipReason::none});
        CHECK(answer.scales == std::vector<double>{4096, 4096, 2048, 2048});
        CHECK(answer.states[2] == answer.states[1]);  // the overflow changed neither weights nor moments
        CHECK(answer.states.back() == expected[rank]);
      }
    }
  }
}

// Back-propagated with 2^24 / (8 samples x 5 tokens), the logits' gradients reach 400,000.
TEST_CASE("a_scale_beyond_fp16_falls_until_gradients_fit_on_all_ranks_alike_and_no_infinity_gets_into_the_state") {
  for (const std::int64_t zero : {0, 3}) {
    CAPTURE(zero);
    const Config config = eight_ranks().on(trap_config(), zero);
    const PhasePlan plan = make_test_plan(config, TestBackend::cpu_f16);
    const auto answers = on_ranks<ScaledAnswer>(
        config, plan,
        [&](RankTrainer& trainer, Rank, InProcessWorld&) {
          return train_dynamically(trainer, {.scale = most_loss_scale},
                                   [&](std::int64_t) -> MicroBatchSource& { return trainer.source(); });
        },
        TestBackend::cpu_f16);
    const ScaledAnswer& first = answers.front();
    CHECK(first.skips.front() == SkipReason::overflow);
    std::vector<double> used;
    for (std::size_t attempt = 0; attempt < first.skips.size(); ++attempt)
      if (first.skips[attempt] == SkipReason::none) used.push_back(first.scales[attempt]);
    const auto expected = train_with_scales(config, used);
    for (std::size_t rank = 0; rank < answers.size(); ++rank) {
      CHECK(answers[rank].skips == first.skips);
      CHECK(answers[rank].scales == first.scales);
      for (const RankState& state : answers[rank].states) CHECK(is_finite(state));
      CHECK(answers[rank].states.back() == expected[rank]);
    }
  }
}

TEST_CASE("a_loss_scale_that_is_a_power_of_two_changes_no_bit_of_training") {
  const Config base = TrapLayout{"", 2, 2, 1}.on(trap_config(), 1);
  for (const TestBackend backend : {TestBackend::cpu, TestBackend::cpu_bf16}) {
    CAPTURE(static_cast<int>(backend));
    const LayoutOutcome plain = run_scaled(base, backend, 1);
    CHECK(plain.problem == "");
    for (const double scale : {0x1p-6, 0x1p+16}) {
      CAPTURE(scale);
      const LayoutOutcome scaled = run_scaled(base, backend, scale);
      CHECK(scaled.losses == plain.losses);
      CHECK(scaled.grad_norms == plain.grad_norms);
      CHECK(scaled.parameters == plain.parameters);
      CHECK(scaled.gradients != plain.gradients);
    }
  }
}

// With weights that are large, so that all gradients are. A query's is not: where a token sees itself alone its scores'
// gradient is zero, and what rounding leaves of it underflows at one scale and not at another.
TEST_CASE("where_no_gradient_of_fp16_underflows_a_power_of_two_scales_it_exactly") {
  Config base = TrapLayout{"", 2, 2, 1}.on(trap_config(), 1);
  base.model.init.std = 0.3;
  const LayoutOutcome plain = run_scaled(base, TestBackend::cpu_f16, 0x1p+16);
  CHECK(plain.problem == "");
  for (const double scale : {0x1p+15, 0x1p+18}) {
    CAPTURE(scale);
    const LayoutOutcome scaled = run_scaled(base, TestBackend::cpu_f16, scale);
    CHECK(scaled.losses.front() == plain.losses.front());
    for (const auto& gradient : scaled.gradients) {
      if (gradient.first.find("attention.query") != std::string::npos) continue;
      CAPTURE(gradient.first);
      std::vector<double> expected = plain.gradients.at(gradient.first);
      for (double& value : expected) value *= scale / 0x1p+16;
      CHECK(gradient.second == expected);
    }
  }
}
