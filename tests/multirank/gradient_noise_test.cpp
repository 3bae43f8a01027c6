// Steps in halves, which measure the gradient's noise, on every kind of layout: the same numbers everywhere, those of
// the halves' own gradients, and the losses of whole steps.
#include <doctest/doctest.h>

#include <array>
#include <numeric>

#include "support/models/tiny_model.h"
#include "support/near.h"
#include "support/ranks/rank_trainer.h"
#include "support/ranks/test_layout.h"

using namespace scaletrain;

namespace {

struct MeasuredLayout {
  TestLayout layout;
  std::int64_t batch = 8;
  TestBackend backend = TestBackend::reference_f64;
  OffloadKind offload = OffloadKind::none;
};

constexpr std::int64_t measured_steps = 3;

Config measured_config(const MeasuredLayout& of) {
  Config config = tiny_config({.layers = 4, .ffn_hidden = 29, .vocab = 41});
  config.run.seed = 11;
  config.train.steps = 50;
  config.train.global_batch = of.batch;
  config.train.micro_batch = 1;
  config.train.optimizer.offload = of.offload;
  config.log.gradient_noise = GradientNoiseConfig{.every = 1};
  lay_out(config, of.layout);
  return config;
}

struct Measured {
  std::vector<double> losses, norms, squares, variances;
  std::vector<std::int64_t> tokens;
  GlobalTensors parameters;
  std::string problem;
};

Measured run_measured(const MeasuredLayout& of, bool in_halves = true) {
  Config config = measured_config(of);
  if (!in_halves) config.log.gradient_noise.reset();
  const PhasePlan plan = make_test_plan(config, of.backend);
  TensorAssembler parameters(plan.table, StateKind::master);
  Measured result;
  run_ranks(plan.mesh, plan.group_facts(), [&](Rank rank, RankGroups& groups, InProcessWorld&) {
    RankTrainer trainer(config, plan, rank, groups, of.backend);
    for (std::int64_t step = 0; step < measured_steps; ++step) {
      const StepRunner::Result made = trainer.step();
      if (rank != Rank(0)) continue;
      result.losses.push_back(made.outcome.loss);
      result.norms.push_back(made.outcome.grad_norm);
      result.tokens.push_back(made.target_tokens);
      if (!made.noise) continue;
      result.squares.push_back(made.noise->square);
      result.variances.push_back(made.noise->variance);
    }
    parameters.add(trainer.settled_store(), StateKind::master);
  });
  result.parameters = parameters.tensors();
  // Their gradients are zero (softmax does not see them), and AdamW makes steps of the rounding that they are.
  std::erase_if(result.parameters, [](const auto& entry) { return entry.first.ends_with("attention.key.bias"); });
  result.problem = parameters.problem();
  return result;
}

// The gradient of the mean loss of some samples, by a step of those alone, and how many targets they have.
struct GradientOf {
  std::vector<double> values;
  double tokens = 0;
};

GradientOf gradient_of(std::int64_t first, std::int64_t count) {
  Config config = measured_config({{"one rank", 1, 1, 1, 0}});
  config.log.gradient_noise.reset();
  const PhasePlan plan = make_test_plan(config, TestBackend::reference_f64);
  TensorAssembler gradients(plan.table, StateKind::gradient);
  GradientOf result;
  run_ranks(plan.mesh, plan.group_facts(), [&](Rank rank, RankGroups& groups, InProcessWorld&) {
    RankTrainer trainer(config, plan, rank, groups, TestBackend::reference_f64);
    std::vector<std::int64_t> samples(static_cast<std::size_t>(count));
    std::iota(samples.begin(), samples.end(), first);
    trainer.source().set_batch(std::move(samples));
    const StepRunner::Result made = trainer.runner().step(
        trainer.source(), {.learning_rate = 0.0, .clip_norm = std::nullopt}, {}, {}, plan.micro_batches_of(count));
    result.tokens = static_cast<double>(made.target_tokens);
    gradients.add(trainer.settled_store(), StateKind::gradient);
  });
  for (const auto& entry : gradients.tensors())
    for (const double value : entry.second) result.values.push_back(value / (plan.loss_gradient * result.tokens));
  return result;
}

double product(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

}  // namespace

TEST_CASE("a_step_in_halves_measures_the_product_and_the_distance_of_the_halves_own_gradients") {
  const Measured one = run_measured({{"one rank", 1, 1, 1, 0}, 5});
  REQUIRE(one.squares.size() == measured_steps);
  const GradientOf first = gradient_of(0, 2);
  const GradientOf second = gradient_of(2, 3);
  REQUIRE(first.tokens != second.tokens);
  const double tokens = first.tokens + second.tokens;
  std::vector<double> apart(first.values.size());
  std::transform(first.values.begin(), first.values.end(), second.values.begin(), apart.begin(), std::minus<double>());
  const double size = one.norms.front() * one.norms.front();
  CHECK(std::abs(one.squares.front() - product(first.values, second.values)) <= 1e-11 * size);
  CHECK(one.variances.front() ==
        Near(5.0 * first.tokens * second.tokens / tokens / tokens * product(apart, apart)).epsilon(1e-10));
}

TEST_CASE("steps_in_halves_measure_the_same_noise_and_train_the_same_on_every_layout") {
  const std::vector<MeasuredLayout> layouts = {
      {{"data 2, zero 0", 2, 1, 1, 0}},
      {{"data 3, zero 1", 3, 1, 1, 1}},
      {{"data 3, zero 2, micro-batches of 2", 3, 1, 1, 2, ScheduleKind::one_f_one_b, 1, false, 2}},
      // As many micro-batches in a half as in all, half of them empty.
      {{"data 5, zero 3, micro-batches of 2", 5, 1, 1, 3, ScheduleKind::one_f_one_b, 1, false, 2}},
      {{"one micro-batch", 1, 1, 1, 0, ScheduleKind::one_f_one_b, 1, false, 8}},
      {{"data 2, zero 3, gradients once a step", 2, 1, 1, 3, ScheduleKind::one_f_one_b, 1, false, 0, 0,
        ZeroReduceKind::step}},
      {{"data 4 in pairs, zero 2", 4, 1, 1, 2, ScheduleKind::one_f_one_b, 1, false, 0, 2}},
      {{"data 2, tensor 2, zero 2, sequence", 2, 2, 1, 2, ScheduleKind::one_f_one_b, 1, true}},
      {{"tensor 2, pipeline 2", 1, 2, 2, 0}},
      {{"pipeline 4, 1f1b", 1, 1, 4, 0}},
      {{"pipeline 3, gpipe", 1, 1, 3, 0, ScheduleKind::gpipe}},
      {{"pipeline 2, two chunks", 1, 1, 2, 0, ScheduleKind::interleaved, 2}},
      {{"data 2, pipeline 2, zb-h1, zero 3", 2, 1, 2, 3, ScheduleKind::zb_h1}},
  };
  for (const std::int64_t batch : {8, 5}) {
    const Measured one = run_measured({{"one rank", 1, 1, 1, 0}, batch});
    REQUIRE(one.squares.size() == measured_steps);
    const Measured whole = run_measured({{"one rank", 1, 1, 1, 0}, batch}, false);
    CHECK(whole.squares.empty());
    CHECK(one.losses.front() == whole.losses.front());
    CHECK(largest_relative(one.losses, whole.losses) <= 1e-12);
    CHECK(largest_relative(one.norms, whole.norms) <= 1e-11);
    CHECK(one.tokens == whole.tokens);
    CHECK(largest_difference(one.parameters, whole.parameters).error <= 1e-9);
    for (MeasuredLayout of : layouts) {
      CAPTURE(of.layout.name);
      CAPTURE(batch);
      of.batch = batch;
      const Measured other = run_measured(of);
      CHECK(other.problem == "");
      CHECK(other.tokens == one.tokens);
      CHECK(largest_relative(other.losses, one.losses) <= 1e-12);
      CHECK(largest_relative(other.norms, one.norms) <= 1e-11);
      CHECK(largest_relative(other.squares, one.squares) <= 1e-9);
      CHECK(largest_relative(other.variances, one.variances) <= 1e-9);
      CHECK(largest_difference(other.parameters, one.parameters).error <= 1e-9);
    }
  }
}

// Late and fenced streams show an order that is missing; the others, types of their own.
TEST_CASE("steps_in_halves_wait_for_what_they_read_and_measure_in_halves_of_precision_too") {
  const Measured one = run_measured({{"one rank", 1, 1, 1, 0}});
  const auto check_near = [&](const MeasuredLayout& of, double tolerance) {
    CAPTURE(of.layout.name);
    Measured other = run_measured(of);
    CHECK(other.problem == "");
    CHECK(largest_relative(other.losses, one.losses) <= tolerance);
    for (std::size_t step = 0; step < 1; ++step) {  // of the same weights
      const double size = one.norms[step] * one.norms[step];
      CHECK(std::abs(other.squares.at(step) - one.squares[step]) <= 100 * tolerance * size);
      CHECK(std::abs(other.variances.at(step) - one.variances[step]) <= 100 * tolerance * one.variances[step]);
    }
    return other;
  };
  const TestLayout pairs{"data 2, zero 1", 2, 1, 1, 1};
  const TestLayout stages{"data 2, pipeline 2, zero 3", 2, 1, 2, 3};
  for (const TestLayout& layout : {pairs, stages}) {
    const Measured at_once = check_near({layout, 8, TestBackend::cpu}, 1e-5);
    for (const TestBackend backend : {TestBackend::late_cpu, TestBackend::on_demand_cpu, TestBackend::fenced_cpu}) {
      const Measured late = check_near({layout, 8, backend}, 1e-5);
      CHECK(late.losses == at_once.losses);
      CHECK(late.squares == at_once.squares);
      CHECK(late.variances == at_once.variances);
      CHECK(late.parameters == at_once.parameters);
    }
    check_near({layout, 8, TestBackend::cpu_bf16}, 5e-3);
  }
  check_near({pairs, 8, TestBackend::fenced_cpu, OffloadKind::host}, 1e-5);
}

TEST_CASE("a_step_in_halves_that_is_skipped_measures_nothing_and_leaves_the_weights") {
  const MeasuredLayout of{{"data 2, zero 1", 2, 1, 1, 1}};
  const Config config = measured_config(of);
  const PhasePlan plan = make_test_plan(config, of.backend);
  run_ranks(plan.mesh, plan.group_facts(), [&](Rank rank, RankGroups& groups, InProcessWorld&) {
    RankTrainer trainer(config, plan, rank, groups, of.backend);
    SyntheticSource first(plan, rank);
    SyntheticSource second(plan, rank);
    first.set_batch({0, 1, 2, 3});
    second.set_batch({4, 5, 6, 7});
    const StepSettings spiked{.learning_rate = 1e-2, .clip_norm = std::nullopt, .loss_limit = 1e-3};
    const std::array<StepRunner::Half, 2> halves = {StepRunner::Half{first, 4}, StepRunner::Half{second, 4}};
    const StepRunner::Result skipped = trainer.runner().step_in_halves(halves, spiked);
    CHECK(skipped.outcome.skip == SkipReason::spike);
    CHECK_FALSE(skipped.noise.has_value());
    const StepRunner::Result made =
        trainer.runner().step_in_halves(halves, {.learning_rate = 1e-2, .clip_norm = std::nullopt});
    CHECK(made.noise.has_value());
    CHECK(made.outcome.loss == skipped.outcome.loss);
  });
}
