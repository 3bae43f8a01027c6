// Steps with fewer micro-batches than the plan's, as a batch that grows has them, on every kind of layout.
#include <doctest/doctest.h>

#include <numeric>

#include "support/models/tiny_model.h"
#include "support/ranks/rank_trainer.h"
#include "support/ranks/test_layout.h"

using namespace scaletrain;

namespace {

constexpr std::int64_t largest_batch = 8;

struct GrowingLosses {
  std::vector<double> losses, norms;
};

// One step of each size from 1 to the plan's.
GrowingLosses train_growing_batches(const TestLayout& layout) {
  Config config = tiny_config({.layers = 4, .ffn_hidden = 29, .vocab = 41});
  config.run.seed = 11;
  config.train.steps = 50;
  config.train.global_batch = largest_batch;
  config.train.micro_batch = 1;
  lay_out(config, layout);
  const PhasePlan plan = make_test_plan(config, TestBackend::reference_f64);
  GrowingLosses result;
  run_ranks(plan.mesh, plan.group_facts(), [&](Rank rank, RankGroups& groups, InProcessWorld&) {
    RankTrainer trainer(config, plan, rank, groups, TestBackend::reference_f64);
    std::int64_t first = 0;
    for (std::int64_t batch = 1; batch <= largest_batch; ++batch) {
      std::vector<std::int64_t> samples(static_cast<std::size_t>(batch));
      std::iota(samples.begin(), samples.end(), first);
      first += batch;
      trainer.source().set_batch(std::move(samples));
      const StepSettings settings{.learning_rate = 1e-2, .clip_norm = 1.0, .update = batch};
      const StepOutcome outcome =
          trainer.runner().step(trainer.source(), settings, {}, {}, plan.micro_batches_of(batch)).outcome;
      if (rank != Rank(0)) continue;
      result.losses.push_back(outcome.loss);
      result.norms.push_back(outcome.grad_norm);
    }
  });
  return result;
}

}  // namespace

TEST_CASE("steps_with_fewer_micro_batches_have_the_losses_of_one_rank_on_every_layout") {
  const GrowingLosses one = train_growing_batches({"one rank", 1, 1, 1, 0});
  REQUIRE(one.losses.size() == largest_batch);
  const std::vector<TestLayout> layouts = {
      {"data 3, zero 1", 3, 1, 1, 1},
      {"data 2, tensor 2, zero 2", 2, 2, 1, 2},
      {"pipeline 3, gpipe", 1, 1, 3, 0, ScheduleKind::gpipe},
      {"pipeline 4, 1f1b", 1, 1, 4, 0},
      {"pipeline 2, two chunks", 1, 1, 2, 0, ScheduleKind::interleaved, 2},
      {"one stage, four chunks", 1, 1, 1, 0, ScheduleKind::interleaved, 4},
      {"data 2, pipeline 3, zb-h1, zero 3", 2, 1, 3, 3, ScheduleKind::zb_h1},
  };
  for (const TestLayout& layout : layouts) {
    CAPTURE(layout.name);
    const GrowingLosses other = train_growing_batches(layout);
    CHECK(largest_relative(other.losses, one.losses) <= 1e-12);
    CHECK(largest_relative(other.norms, one.norms) <= 1e-11);
  }
}

TEST_CASE("as_many_micro_batches_as_a_batch_needs") {
  Config config = tiny_config({.layers = 4, .ffn_hidden = 29, .vocab = 41});
  config.train.global_batch = 24;
  config.train.micro_batch = 4;
  config.parallel.data = 3;
  const PhasePlan plan = make_test_plan(config, TestBackend::reference_f64);
  CHECK(plan.micro_batches_of(24) == plan.num_micro_batches);
  CHECK(plan.micro_batches_of(13) == 2);
  CHECK(plan.micro_batches_of(12) == 1);
  CHECK(plan.micro_batches_of(1) == 1);
  CHECK_THROWS_AS(plan.micro_batches_of(25), BugError);
}
