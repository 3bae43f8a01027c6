// Traps of the gradient's norm and of clipping: what the ranks of any layout must find together.
#include <doctest/doctest.h>

#include <deque>
#include <set>

#include "support/near.h"
#include "trap_runs.h"

using namespace scaletrain;

namespace {

double squares_of(const GlobalTensors& tensors) {
  double sum = 0.0;
  for (const auto& entry : tensors)
    sum += std::inner_product(entry.second.begin(), entry.second.end(), entry.second.begin(), 0.0);
  return sum;
}

double distance(const GlobalTensors& a, const GlobalTensors& b) {
  double sum = 0.0;
  for (const auto& entry : a)
    for (std::size_t i = 0; i < entry.second.size(); ++i) {
      const double difference = entry.second[i] - b.at(entry.first)[i];
      sum += difference * difference;
    }
  return std::sqrt(sum);
}

// A run with all that a norm can be checked by: the whole tensors after every step.
struct NormRun {
  PhasePlan plan;
  std::vector<StepRunner::Result> results;  // by step
  std::vector<GlobalTensors> weights;       // before the first step, and after each
  std::vector<GlobalTensors> gradients;     // of each step, as the store holds them
  std::string problem;
};

NormRun run_norm(const Config& config, std::size_t steps, TestBackend backend = TestBackend::reference_f64,
                 double loss_scale = 1.0) {
  NormRun run;
  run.plan = make_test_plan(config, backend);
  run.plan.loss_gradient *= loss_scale;
  std::deque<TensorAssembler> weights;
  std::deque<TensorAssembler> gradients;
  for (std::size_t step = 0; step <= steps; ++step) weights.emplace_back(run.plan.table);
  for (std::size_t step = 0; step < steps; ++step) gradients.emplace_back(run.plan.table);
  const auto results = on_ranks<std::vector<StepRunner::Result>>(
      config, run.plan,
      [&](RankTrainer& trainer, Rank, InProcessWorld&) {
        std::vector<StepRunner::Result> own;
        weights[0].add(trainer.settled_store(), StateKind::master);
        for (std::size_t step = 0; step < steps; ++step) {
          own.push_back(trainer.step());
          weights[step + 1].add(trainer.settled_store(), StateKind::master);
          gradients[step].add(trainer.settled_store(), StateKind::gradient);
        }
        return own;
      },
      backend);
  run.results = results.front();
  for (const auto& other : results)
    for (std::size_t step = 0; step < steps; ++step) {
      const StepOutcome& outcome = other[step].outcome;
      const StepOutcome& first = run.results[step].outcome;
      if (outcome.grad_norm != first.grad_norm || outcome.block.gradient_scale != first.block.gradient_scale)
        run.problem = "ranks disagree about the norm or the clipping of step " + std::to_string(step);
    }
  for (const TensorAssembler& assembler : weights) {
    if (!assembler.problem().empty()) run.problem = assembler.problem();
    run.weights.push_back(assembler.tensors());
  }
  for (const TensorAssembler& assembler : gradients) {
    if (!assembler.problem().empty()) run.problem = assembler.problem();
    run.gradients.push_back(assembler.tensors());
  }
  return run;
}

Config clipped_sgd(double clip, double peak_learning_rate = 1e-2) {
  Config config = trap_config();
  use_sgd(config);
  config.train.clip_norm = clip;
  config.train.optimizer.learning_rate = peak_learning_rate;
  return config;
}

double rate_of(const Config& config, std::int64_t step) {
  return learning_rate(config.train.lr_schedule, config.train.optimizer.learning_rate, step,
                       config.train.steps.value());
}

}  // namespace

TEST_CASE("trap_every_rank_and_layout_clips_by_the_one_norm_of_the_whole_model") {
  // A clipped step of SGD is as long as rate times limit, another one as rate times norm.
  for (const double clip : {0.1, 1e3}) {
    const Config base = clipped_sgd(clip);
    const NormRun one = run_norm(base, 3);
    REQUIRE(one.problem == "");
    for (const TrapLayout& layout : trap_layouts()) {
      for (const std::int64_t zero : layout.zero_stages()) {
        CAPTURE(clip);
        CAPTURE(layout.name);
        CAPTURE(zero);
        const NormRun run = run_norm(layout.on(base, zero), 3);
        CHECK(run.problem == "");
        for (std::size_t step = 0; step < 3; ++step) {
          const double norm = run.results[step].outcome.grad_norm;
          CHECK((norm > clip) == (clip < 1.0));
          const double expected = rate_of(base, static_cast<std::int64_t>(step) + 1) * std::min(norm, clip);
          CHECK(distance(run.weights[step + 1], run.weights[step]) == Near(expected).epsilon(1e-9));
        }
        CHECK(largest_difference(run.weights.back(), one.weights.back()).error <= 1e-9);
      }
    }
  }
}

TEST_CASE("trap_clipping_is_not_silently_off_in_any_precision") {
  const Config config = trap_layouts()[4].on(clipped_sgd(0.1, 1.0), 1);
  for (const TestBackend backend : {TestBackend::reference_f64, TestBackend::reference_f32, TestBackend::cpu}) {
    const NormRun run = run_norm(config, 2, backend);
    CHECK(run.problem == "");
    for (std::size_t step = 0; step < 2; ++step) {
      CHECK(run.results[step].outcome.grad_norm > 0.1);
      const double expected = 0.1 * rate_of(config, static_cast<std::int64_t>(step) + 1);
      CHECK(distance(run.weights[step + 1], run.weights[step]) == Near(expected).epsilon(1e-4));
    }
  }
}

TEST_CASE("trap_norm_leaves_out_no_stage_counts_no_replica_twice_and_uses_no_stale_shard") {
  // Of every step, recomputed from the whole gradient, with every element once.
  Config base = trap_config();
  for (const TrapLayout& layout : trap_layouts()) {
    for (const std::int64_t zero : layout.zero_stages()) {
      CAPTURE(layout.name);
      CAPTURE(zero);
      const NormRun run = run_norm(layout.on(base, zero), 3);
      CHECK(run.problem == "");
      for (std::size_t step = 0; step < 3; ++step) {
        const double scale = run.plan.loss_gradient * static_cast<double>(run.results[step].target_tokens);
        const double expected = std::sqrt(squares_of(run.gradients[step])) / scale;
        CHECK(run.results[step].outcome.grad_norm == Near(expected).epsilon(1e-12));
        // Another step's gradients would be noticed.
        CHECK(std::abs(run.results[step].outcome.grad_norm - run.results[(step + 1) % 3].outcome.grad_norm) > 1e-6);
      }
    }
  }
}

TEST_CASE("trap_tied_embedding_counts_once_in_the_norm_and_in_the_parameters") {
  const Config base = trap_config();
  const std::string tied = "embedding.token.weight";
  const std::int64_t parameters = make_test_plan(base, TestBackend::reference_f64).table.num_parameters();
  for (const TrapLayout& layout : {TrapLayout{"one stage", 1, 1, 1}, TrapLayout{"two stages", 1, 1, 2},
                                   TrapLayout{"two stages, replicas", 2, 1, 2}, TrapLayout{"all", 2, 2, 2}}) {
    for (const std::int64_t zero : layout.zero_stages()) {
      CAPTURE(layout.name);
      CAPTURE(zero);
      const NormRun run = run_norm(layout.on(base, zero), 1);
      CHECK(run.problem == "");
      const double scale = run.plan.loss_gradient * static_cast<double>(run.results[0].target_tokens);
      const double once = squares_of(run.gradients[0]);
      const double twice = once + squares_of({{tied, run.gradients[0].at(tied)}});
      CHECK(run.results[0].outcome.grad_norm == Near(std::sqrt(once) / scale).epsilon(1e-12));
      CHECK(std::sqrt(twice / once) > 1.01);  // or the test shows nothing
      CHECK(run.plan.table.num_parameters() == parameters);
      std::int64_t saved = 0;
      for (std::int64_t rank = 0; rank < run.plan.mesh.world(); ++rank)
        for (const SavePiece& piece : run.plan.save_plan(Rank(rank)))
          if (piece.state < 0) saved += piece.range.count;
      CHECK(saved == parameters);
    }
  }
}

TEST_CASE("trap_norm_of_gradients_whose_squares_leave_the_range_of_their_type_is_right") {
  // The loss is scaled, and the scale taken out at the update: squares of 1e48 and of 1e-48 do not fit single
  // precision.
  const Config config = trap_layouts()[4].on(clipped_sgd(0.1), 1);
  for (const TestBackend backend : {TestBackend::reference_f32, TestBackend::cpu}) {
    const NormRun plain = run_norm(config, 1, backend);
    for (const double scale : {std::ldexp(1.0, 80), std::ldexp(1.0, -80)}) {
      const NormRun scaled = run_norm(config, 1, backend, scale);
      CHECK(scaled.problem == "");
      CHECK(scaled.results[0].outcome.skip == SkipReason::none);
      CHECK(scaled.results[0].outcome.grad_norm == Near(plain.results[0].outcome.grad_norm).epsilon(1e-4));
      CHECK(largest_difference(scaled.weights[1], plain.weights[1]).error <= 1e-6);
    }
  }
}

TEST_CASE("trap_ranks_that_own_no_parameters_take_part_in_the_norm_and_hang_nobody") {
  // Five classes and five ffn features on four tensor ranks, and a stage of the embedding or of the head alone.
  Config base = clipped_sgd(0.1);
  make_llama(base.model);
  base.model.vocab = 5;
  base.model.ffn_hidden = 5;
  const NormRun one = run_norm(base, 2);
  REQUIRE(one.problem == "");
  const TrapLayout layout{"", 2, 4, 2};
  for (const std::vector<std::int64_t>& stages : {std::vector<std::int64_t>{0, 4}, std::vector<std::int64_t>{4, 0}}) {
    for (const std::int64_t zero : {0, 1, 3}) {
      CAPTURE(stages[0]);
      CAPTURE(zero);
      Config config = layout.on(base, zero);
      config.parallel.stage_layers = stages;
      const NormRun run = run_norm(config, 2);
      CHECK(run.problem == "");
      std::int64_t without = 0;  // ranks that update nothing
      for (std::int64_t rank = 0; rank < run.plan.mesh.world(); ++rank) {
        const ShardLayout own = run.plan.layout(Rank(rank));
        std::int64_t owned = 0;
        for (const ParamRange& range : own.shard_ranges(own.position().data)) owned += range.count;
        without += owned == 0;
      }
      // Of the tensor ranks the last has no class and the one before it a single one, which is the first replica's; a
      // stage of the head has its norm besides, which is the first replica's too.
      CHECK(without == (stages[0] == 0 ? 3 : 2));
      for (std::size_t step = 0; step < 2; ++step)
        CHECK(run.results[step].outcome.grad_norm == Near(one.results[step].outcome.grad_norm).epsilon(1e-9));
      CHECK(largest_difference(run.weights.back(), one.weights.back()).error <= 1e-9);
    }
  }
}
