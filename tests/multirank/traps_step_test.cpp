// Traps of a step on several ranks: overflow that only some see, means of means, pipelines with less work than stages.
#include <doctest/doctest.h>

#include <limits>

#include "support/near.h"
#include "trap_runs.h"

using namespace scaletrain;

namespace {

StepSettings settings_of(std::int64_t update) {
  return {.learning_rate = 1e-2, .clip_norm = 1.0, .beta1 = 0.9, .beta2 = 0.95, .update = update};
}

struct OverflowAnswer {
  bool is_spoilt = false;
  SkipReason skip = SkipReason::none;
  std::vector<std::vector<double>> before, after, last;
};

// Three steps; before the second one an attempt at it in which rank `broken` alone overflows (-1: no attempt).
std::vector<OverflowAnswer> train_with_overflow(const Config& config, std::int64_t broken, double value) {
  const PhasePlan plan = make_test_plan(config, TestBackend::reference_f64);
  return on_ranks<OverflowAnswer>(config, plan, [&](RankTrainer& trainer, Rank rank, InProcessWorld&) {
    OverflowAnswer answer;
    for (std::int64_t step = 0; step < 3; ++step) {
      trainer.source().set_step(step);
      if (step == 1 && broken >= 0) {
        answer.before = state_of(trainer);
        if (rank.value() == broken) {
          OverflowingSource source(trainer.source(), trainer.settled_store(), value);
          answer.skip = trainer.runner().step(source, settings_of(step + 1)).outcome.skip;
          answer.is_spoilt = source.has_overflowed();
        } else {
          answer.skip = trainer.runner().step(trainer.source(), settings_of(step + 1)).outcome.skip;
        }
        answer.after = state_of(trainer);
      }
      trainer.runner().step(trainer.source(), settings_of(step + 1));
    }
    answer.last = state_of(trainer);
    return answer;
  });
}

}  // namespace

TEST_CASE("trap_overflow_or_nan_on_one_rank_alone_skips_the_step_on_all_and_leaves_weights_and_optimizer_state") {
  const TrapLayout layout{"", 2, 2, 2};
  for (const std::int64_t zero : {0, 1, 2, 3}) {
    const Config config = layout.on(trap_config(), zero);
    const auto undisturbed = train_with_overflow(config, -1, 0.0);
    for (std::int64_t broken = 0; broken < 8; ++broken) {
      CAPTURE(zero);
      CAPTURE(broken);
      const double value =
          broken % 2 == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
      const auto answers = train_with_overflow(config, broken, value);
      for (std::size_t rank = 0; rank < answers.size(); ++rank) {
        CHECK(answers[rank].is_spoilt == (static_cast<std::int64_t>(rank) == broken));
        CHECK(answers[rank].skip == SkipReason::nonfinite_gradient);
        CHECK(answers[rank].after == answers[rank].before);
        // As if the attempt had never been.
        CHECK(answers[rank].last == undisturbed[rank].last);
      }
    }
  }
}

TEST_CASE("trap_loss_and_gradient_are_means_over_tokens_not_means_of_means_of_micro_batches_or_replicas") {
  Config base = trap_config();
  use_sgd(base);
  // Each sample by itself, with the initial weights.
  const PhasePlan plan = make_test_plan(base, TestBackend::reference_f64);
  const auto sums =
      on_ranks<std::vector<StepRunner::EvaluationSums>>(base, plan, [](RankTrainer& trainer, Rank, InProcessWorld&) {
        std::vector<StepRunner::EvaluationSums> own;
        for (std::int64_t sample = 0; sample < 12; ++sample) {
          trainer.source().set_batch({sample});
          own.push_back(trainer.runner().evaluate(trainer.source(), 1));
        }
        return own;
      });
  double sum = 0.0;
  double tokens = 0.0;
  double means = 0.0;
  double samples = 0.0;
  for (const StepRunner::EvaluationSums& sample : sums.front()) {
    if (sample.target_tokens == 0) continue;
    sum += sample.loss_sum;
    tokens += static_cast<double>(sample.target_tokens);
    means += sample.loss_sum / static_cast<double>(sample.target_tokens);
    samples += 1.0;
  }
  const double expected = sum / tokens;
  REQUIRE(std::abs(means / samples - expected) > 1e-3 * expected);
  for (const TrapLayout& layout :
       {TrapLayout{"one rank", 1, 1, 1}, TrapLayout{"data 2", 2, 1, 1}, TrapLayout{"data 3", 3, 1, 1},
        TrapLayout{"data 2, pipeline 2", 2, 1, 2}, TrapLayout{"tensor 2, pipeline 2", 1, 2, 2}}) {
    for (const std::int64_t micro_batch : {1, 2}) {
      CAPTURE(layout.name);
      CAPTURE(micro_batch);
      Config config = layout.on(base, layout.data > 1 ? 2 : 0);
      config.train.micro_batch = micro_batch;
      const PhasePlan own_plan = make_test_plan(config, TestBackend::reference_f64);
      constexpr double rate = 1e-5;
      const auto results =
          on_ranks<std::vector<StepRunner::Result>>(config, own_plan, [&](RankTrainer& trainer, Rank, InProcessWorld&) {
            std::vector<StepRunner::Result> own;
            for (std::int64_t update = 1; update <= 2; ++update) {
              trainer.source().set_step(0);
              own.push_back(trainer.runner().step(
                  trainer.source(),
                  {.learning_rate = rate, .clip_norm = {}, .beta1 = 0.9, .beta2 = 0.95, .update = update}));
            }
            return own;
          });
      const StepOutcome& first = results.front()[0].outcome;
      CHECK(first.loss == Near(expected).epsilon(1e-12));
      // A small step along the gradient of this loss lowers it by rate times the norm's square.
      const double fall = first.loss - results.front()[1].outcome.loss;
      CHECK(fall == Near(rate * first.grad_norm * first.grad_norm).epsilon(1e-3));
    }
  }
}

namespace {

LayoutOutcome two_steps(const Config& config) {
  LayoutRun run{.config = config};
  run.steps = 2;
  run.evaluation_samples = 1;
  return run_layout(run);
}

}  // namespace

TEST_CASE("trap_fewer_micro_batches_than_stages_train_as_one_rank_does_in_every_schedule") {
  Config base = trap_config();
  use_sgd(base);
  base.model.layers = 8;
  const LayoutOutcome one = two_steps(base);
  for (const ScheduleKind kind :
       {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved, ScheduleKind::zb_h1}) {
    for (const std::int64_t micro_batches : {1, 2, 3}) {
      const TrapLayout layout{"", 1, 1, 4, kind, kind == ScheduleKind::interleaved ? 2 : 1};
      CAPTURE(static_cast<int>(kind));
      CAPTURE(micro_batches);
      Config config = layout.on(base, 0);
      config.train.micro_batch = 12 / micro_batches;
      const LayoutOutcome many = two_steps(config);
      CHECK(many.plan.num_micro_batches == micro_batches);
      check_like_one_rank(many, one);
    }
  }
}

TEST_CASE("trap_loss_and_gradient_are_scaled_once_not_at_every_accumulation_step_or_stage_and_tokens_counted_once") {
  Config base = trap_config();
  use_sgd(base);
  Config whole = base;
  whole.train.micro_batch = 12;  // nothing is accumulated
  const LayoutOutcome one = two_steps(whole);
  for (const TrapLayout& layout :
       {TrapLayout{"one stage", 1, 1, 1}, TrapLayout{"two stages", 1, 1, 2}, TrapLayout{"four stages", 1, 1, 4},
        TrapLayout{"four stages, zb-h1", 1, 1, 4, ScheduleKind::zb_h1}, TrapLayout{"data 2, two stages", 2, 1, 2}}) {
    for (const std::int64_t zero : layout.zero_stages()) {
      for (const std::int64_t micro_batch : {1, 3, 6}) {
        CAPTURE(layout.name);
        CAPTURE(zero);
        CAPTURE(micro_batch);
        Config config = layout.on(base, zero);
        config.train.micro_batch = micro_batch;
        check_like_one_rank(two_steps(config), one);
      }
    }
  }
}

TEST_CASE("trap_a_stage_with_no_layers_trains_as_one_rank_does_in_every_schedule") {
  for (const bool tied : {false, true}) {
    Config base = trap_config();
    use_sgd(base);
    base.model.tie_embeddings = tied;
    const LayoutOutcome one = two_steps(base);
    struct Case {
      TrapLayout layout;
      std::vector<std::int64_t> stage_layers;
    };
    for (const Case& own :
         {Case{{"1f1b", 2, 1, 3}, {0, 4, 0}}, Case{{"gpipe", 1, 2, 2, ScheduleKind::gpipe, 1, true}, {0, 4}},
          Case{{"zb-h1", 2, 1, 2, ScheduleKind::zb_h1}, {4, 0}},
          Case{{"two chunks", 2, 1, 2, ScheduleKind::interleaved, 2}, {0, 2, 2, 0}}}) {
      for (const std::int64_t zero : own.layout.zero_stages()) {
        CAPTURE(tied);
        CAPTURE(own.layout.name);
        CAPTURE(zero);
        Config config = own.layout.on(base, zero);
        config.parallel.stage_layers = own.stage_layers;
        check_like_one_rank(two_steps(config), one);
      }
    }
  }
}
