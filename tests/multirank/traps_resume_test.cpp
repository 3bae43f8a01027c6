// Traps of a resume on another layout: what a run must keep though its ranks are others. Whole runs, ranks as threads.
#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "data/order/history.h"
#include "support/near.h"
#include "unit/train/ranks_run.h"

using namespace scaletrain;

namespace {

// Overfits: set a holds bytes that training never sees, so that its loss rises after the first evaluations.
struct ImpatientRun : RanksRun {
  ImpatientRun() {
    folder.write("train.txt", std::string(2000, 'x'));
    folder.write("a.txt", std::string(200, 'q'));
    overrides_always = {"model.layers=2",     "train.micro_batch=1",
                        "train.steps=14",     "train.optimizer.learning_rate=3e-2",
                        "evaluate.every=2",   "checkpoint.every=0",
                        "checkpoint.keep=10", "early_stop={metric: validation/a/loss, patience: 3}"};
  }
};

}  // namespace

TEST_CASE("trap_early_stop_patience_goes_on_after_a_resume_on_another_layout") {
  ImpatientRun whole;
  REQUIRE(whole.run() == ExitCode::finished);
  REQUIRE(whole.metrics().early_stops.size() == 1);
  const std::int64_t stop = whole.metrics().early_stops[0].step;
  REQUIRE(stop < 12);  // begun again at the interruption, the patience would last to a later step
  for (const int interrupted : {5, 7}) {
    CAPTURE(interrupted);
    REQUIRE(interrupted < stop);
    ImpatientRun parts;
    REQUIRE(
        all_are(parts.run_ranks(4, {"parallel.data=2", "parallel.pipeline=2"}, 3, interrupted), ExitCode::interrupted));
    REQUIRE(all_are(parts.run_ranks(4, {"parallel.data=4", "parallel.zero=3"}), ExitCode::finished));
    check_same_losses(parts.metrics(), whole.metrics());
    REQUIRE(parts.metrics().early_stops.size() == 1);
    CHECK(parts.metrics().early_stops[0].step == stop);
  }
}

TEST_CASE("trap_learning_rate_clip_decay_and_optimizer_state_of_every_step_survive_two_resumes_on_other_layouts") {
  const std::vector<std::string> settings = {"train.clip_norm=0.05", "train.optimizer.weight_decay=0.3",
                                             "train.optimizer.learning_rate=1e-2"};
  RanksRun whole;
  whole.overrides_always.insert(whole.overrides_always.end(), settings.begin(), settings.end());
  REQUIRE(whole.run() == ExitCode::finished);
  RanksRun parts;
  parts.overrides_always = whole.overrides_always;
  REQUIRE(all_are(parts.run_ranks(4, {"parallel.tensor=2", "parallel.pipeline=2"}, 2, 3), ExitCode::interrupted));
  REQUIRE(all_are(parts.run_ranks(2, {"parallel.data=2", "parallel.zero=3"}, 1, 5), ExitCode::interrupted));
  REQUIRE(all_are(parts.run_ranks(4, {"parallel.data=2", "parallel.tensor=2", "parallel.zero=1"}), ExitCode::finished));
  const Metrics metrics = parts.metrics();
  REQUIRE(metrics.restarts.size() == 2);
  CHECK(metrics.restarts[0].step == 3);
  CHECK(metrics.restarts[1].step == 8);
  check_same_losses(metrics, whole.metrics());
  for (const StepRecord& step : metrics.steps) CHECK(step.grad_norm > 0.05);  // every one is clipped
  // Each rate once: none is repeated at a resume, none passed over.
  for (std::size_t i = 11; i < metrics.steps.size(); ++i)
    CHECK(metrics.steps[i].learning_rate < metrics.steps[i - 1].learning_rate);
}

TEST_CASE("trap_a_change_of_the_data_degree_at_a_resume_neither_drops_nor_repeats_a_sample") {
  // Two steps on each world; between them the history is all that is kept, as a checkpoint keeps it.
  ConsumptionHistory history;
  history.continue_with({.hash = 1, .sources = {}}, 8, 12);
  std::vector<std::int64_t> trained;
  for (const std::int64_t replicas : {4, 1, 6, 2, 3, 12}) {
    ConsumptionHistory resumed = ConsumptionHistory::from_json(history.to_json(), "history");
    CHECK(resumed.continue_with({.hash = 1, .sources = {}}, 8, 12));
    for (int step = 0; step < 2; ++step) {
      const std::vector<std::int64_t> batch = resumed.batch();
      for (std::int64_t replica = 0; replica < replicas; ++replica) {
        for (std::int64_t micro_batch = 0; micro_batch < 12 / replicas; ++micro_batch) {
          const auto samples = micro_batch_samples(batch, replicas, replica, 1, micro_batch);
          trained.insert(trained.end(), samples.begin(), samples.end());
        }
      }
      resumed.consume_batch(8 * 12);
    }
    history = resumed;
  }
  REQUIRE(trained.size() == 6 * 2 * 12);
  for (std::size_t i = 0; i < trained.size(); ++i) CHECK(trained[i] == static_cast<std::int64_t>(i));
}

// The first step warms up: here it takes half a second longer, which no other step's numbers may have in them.
TEST_CASE("trap_tokens_per_second_count_the_global_batch_once_and_each_step_by_its_own_time_whatever_the_world") {
  for (const std::vector<std::string>& layout : {std::vector<std::string>{"parallel.data=4"},
                                                 {"parallel.data=2", "parallel.tensor=2"},
                                                 {"parallel.tensor=4", "model.heads=4"}}) {
    RanksRun run;
    run.overrides_always.push_back("train.steps=3");
    run.overrides_always.push_back("train.lr_schedule.warmup=1");
    static constexpr double warm_up = 0.5;
    std::atomic<int> asked{0};
    run.hooks.interrupted = [&asked] {  // in every step, by each of the four ranks
      if (asked++ < 4) std::this_thread::sleep_for(std::chrono::duration<double>(warm_up));
      return false;
    };
    const MonotonicTime start = monotonic_now();
    REQUIRE(all_are(run.run_ranks(4, layout), ExitCode::finished));
    const double whole_run = seconds_since(start);
    const Metrics metrics = run.metrics();
    REQUIRE(metrics.steps.size() == 3);
    CHECK(metrics.steps[0].step_seconds >= warm_up);
    double all_steps = 0.0;
    for (std::size_t i = 0; i < 3; ++i) {
      const StepRecord& step = metrics.steps[i];
      CHECK(step.tokens == static_cast<std::int64_t>(i + 1) * 4 * 16);
      CHECK(step.tokens_per_second == Near(4.0 * 16.0 / step.step_seconds));
      all_steps += step.step_seconds;
    }
    // Times that began at the first step would sum up to more.
    CHECK(all_steps <= whole_run);
  }
}

// Interrupted between two phases and again behind the last one. With one micro-batch a replica all ZeRO stages sum in
// the same order, and have the same bits.
TEST_CASE("trap_parameters_that_join_go_on_after_resumes_on_other_layouts_with_the_state_of_their_own_updates") {
  const std::vector<std::string> settings = {
      "train.micro_batch=2", "train.optimizer.learning_rate=1e-2", "train.optimizer.weight_decay=0.3",
      "finetune.freeze=[embedding.*, blocks.0.*]",
      "finetune.unfreeze=[{step: 2, patterns: [blocks.0.*]}, {step: 5, patterns: [embedding.*]}]"};
  RanksRun whole;
  whole.overrides_always.insert(whole.overrides_always.end(), settings.begin(), settings.end());
  REQUIRE(all_are(whole.run_ranks(2, {"parallel.data=2"}), ExitCode::finished));
  const Metrics expected = whole.metrics();
  REQUIRE(expected.steps.size() > 8);
  RanksRun parts;
  parts.overrides_always = whole.overrides_always;
  REQUIRE(all_are(parts.run_ranks(2, {"parallel.data=2", "parallel.zero=3"}, 1, 3), ExitCode::interrupted));
  REQUIRE(all_are(parts.run_ranks(2, {"parallel.data=2", "parallel.zero=1"}, 1, 4), ExitCode::interrupted));
  REQUIRE(all_are(parts.run_ranks(2, {"parallel.data=2", "parallel.zero=2"}), ExitCode::finished));
  const Metrics found = parts.metrics();
  REQUIRE(found.restarts.size() == 2);
  CHECK(found.restarts[0].step == 3);
  CHECK(found.restarts[1].step == 7);
  REQUIRE(found.steps.size() == expected.steps.size());
  for (std::size_t i = 0; i < found.steps.size(); ++i) {
    CAPTURE(i);
    CHECK(found.steps[i].loss == expected.steps[i].loss);
    CHECK(found.steps[i].grad_norm == expected.steps[i].grad_norm);
  }
  RanksRun other;
  other.overrides_always = whole.overrides_always;
  REQUIRE(all_are(other.run_ranks(4, {"parallel.tensor=2", "parallel.pipeline=2"}, 2, 4), ExitCode::interrupted));
  REQUIRE(all_are(other.run_ranks(2, {"parallel.data=2"}), ExitCode::finished));
  check_same_losses(other.metrics(), expected);
}
