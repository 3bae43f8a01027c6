// Runs in phases: the same as runs without where phases say nothing, the same as runs that were changed by hand where
// they do, and the same to the bit however often they were interrupted.
#include <fmt/format.h>

#include "spike_runs.h"
#include "support/near.h"

using namespace scaletrain;

namespace {

// train.txt has some 250 samples of 16 tokens, b.txt 10.
const std::string web_and_books = "data.train=[{path: train.txt, name: web, weight: 3}, {path: b.txt}]";
const std::vector<std::string> three_phases = {
    web_and_books,
    "phases=[{steps: 4, context: 8, global_batch: 2}, {steps: 5, weights: {web: 1, '1': 1}, learning_rate_factor: 0.5, "
    "global_batch: 3}, {steps: 3, context: 4, weights: {web: 1}}]"};

std::vector<double> losses_by_step(const Metrics& metrics) {
  std::vector<double> losses;
  for (const StepRecord& step : metrics.steps) losses.push_back(step.loss);
  return losses;
}

void check_same_run(const TinyRun& a, const TinyRun& b, std::int64_t last) {
  check_same_numbers(a.metrics(), b.metrics());
  CHECK(tensors_of(a.checkpoint(last)) == tensors_of(b.checkpoint(last)));
  CHECK(Checkpoint(a.checkpoint(last)).manifest().history == Checkpoint(b.checkpoint(last)).manifest().history);
}

std::string text_of_log(const TinyRun& run) {
  return TempFolder::read(run.paths.folder / "logs" / "rank-00000.log");
}

}  // namespace

TEST_CASE("phases_with_the_settings_of_the_run_are_the_run") {
  TinyRun plain;
  CHECK(plain.run({web_and_books}) == ExitCode::finished);
  TinyRun phases;
  CHECK(phases.run({web_and_books,
                    "phases=[{steps: 5}, {tokens: 256, context: 16, weights: {web: 3, '1': 1}}, {steps: 3, "
                    "global_batch: 4, learning_rate_factor: 1}]"}) == ExitCode::finished);
  check_same_run(phases, plain, 12);
  CHECK(plain.metrics().phases.empty());
  REQUIRE(phases.metrics().phases.size() == 3);
}

TEST_CASE("a_phase_is_what_a_resume_with_its_settings_is") {
  const std::vector<std::string> whole = {"evaluate.batches=0", "train.optimizer.learning_rate=1e-2",
                                          "checkpoint.every=0"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), whole.begin(), whole.end());
    return more;
  };
  TinyRun phases;
  CHECK(phases.run(with({web_and_books,
                         "phases=[{steps: 6}, {steps: 6, weights: {web: 1, '1': 5}, global_batch: 2, "
                         "learning_rate_factor: 0.5}]"})) == ExitCode::finished);
  TinyRun by_hand;
  CHECK(by_hand.run(with({web_and_books}), 6) == ExitCode::interrupted);
  CHECK(by_hand.run(with({"data.train=[{path: train.txt, weight: 1}, {path: b.txt, weight: 5}]", "train.global_batch=2",
                          "train.optimizer.learning_rate=0.5e-2"})) == ExitCode::finished);
  check_same_run(phases, by_hand, 12);
}

TEST_CASE("phases_resume_to_the_bit") {
  TinyRun whole;
  CHECK(whole.run(three_phases) == ExitCode::finished);
  const Metrics metrics = whole.metrics();
  // Steps of 2 x 8, 3 x 16 and 4 x 4 tokens; b.txt's last sample alone is padded.
  REQUIRE(metrics.steps.size() == 12);
  for (std::size_t i = 0; i < 12; ++i) {
    const std::int64_t own = metrics.steps[i].tokens - (i > 0 ? metrics.steps[i - 1].tokens : 0);
    const std::int64_t full = i < 4 ? 16 : i < 9 ? 48 : 16;
    CHECK(own <= full);
    CHECK(own > full - 12);
  }
  // In the middle of each phase, where the second begins (a checkpoint of its first step's state), and at each step.
  for (const std::int64_t stops : {1, 4, 7, 9, 11}) {
    CAPTURE(stops);
    TinyRun parts;
    CHECK(parts.run(three_phases, stops) == ExitCode::interrupted);
    CHECK(parts.run(three_phases) == ExitCode::finished);
    check_same_run(parts, whole, 12);
    CHECK(parts.metrics().phases.size() == 3);
  }
  TinyRun every_step;
  for (int step = 0; step < 11; ++step) CHECK(every_step.run(three_phases, 1) == ExitCode::interrupted);
  CHECK(every_step.run(three_phases) == ExitCode::finished);
  check_same_run(every_step, whole, 12);
  CHECK_FALSE(contains(text_of_log(every_step), "data.train has changed"));
}

TEST_CASE("phases_are_told_where_they_begin") {
  TinyRun run;
  CHECK(run.run(three_phases, 5) == ExitCode::interrupted);
  CHECK(run.run(three_phases) == ExitCode::finished);
  const std::vector<PhaseRecord> phases = run.metrics().phases;
  REQUIRE(phases.size() == 3);
  CHECK(phases[1].step == 5);
  CHECK(phases[1].phase == 1);
  CHECK(phases[1].steps == 5);
  CHECK(phases[1].context == 16);
  CHECK(phases[1].global_batch == 3);
  CHECK(phases[1].learning_rate_factor == 0.5);
  CHECK(phases[1].weights == std::vector<std::pair<std::string, double>>{{"1", 1}, {"web", 1}});
  CHECK(phases[2].weights == std::vector<std::pair<std::string, double>>{{"web", 1}});
  CHECK(contains(text_of_log(run),
                 "step 5 begins phase 2 of 3: 5 steps of 3 samples of 16 tokens (web 1, 1 1), learning "
                 "rate times 0.5"));
  // By hand: 4 · 2 of 8 tokens, of 4 web's 3; then 15, every other one, of 16; then 12 of 4.
  const SourceRecord web = run.metrics().starts[0].sources[0];
  const double tokens_of_web = 6 * 8 + 8 * 16 + 12 * 4;
  const double an_epoch = 16.0 * static_cast<double>(web.samples) / 2;  // its samples are of 8 tokens at the start
  CHECK(web.epochs == Near(tokens_of_web / an_epoch).epsilon(0.1));
}

TEST_CASE("a_phase_has_its_part_of_the_learning_rate") {
  TinyRun plain;
  plain.run();
  TinyRun phases;
  phases.run({"phases=[{steps: 7}, {steps: 5, learning_rate_factor: 0.25}]"});
  const std::vector<StepRecord> found = phases.metrics().steps;
  const std::vector<StepRecord> expected = plain.metrics().steps;
  REQUIRE(found.size() == 12);
  for (std::size_t i = 0; i < 12; ++i) CHECK(found[i].learning_rate == expected[i].learning_rate * (i < 7 ? 1 : 0.25));
}

TEST_CASE("caps_that_do_not_suffice_for_a_phase_to_come_are_refused_before_the_first_step") {
  TinyRun run;
  const std::string capped = "data.train=[{path: train.txt, name: web}, {path: b.txt, name: books, epochs: 1}]";
  const std::string refusal = message_of<UserError>([&] {
    run.run({capped, "phases=[{steps: 4}, {steps: 8, global_batch: 2, weights: {books: 1}}]"});
  });
  CAPTURE(refusal);
  CHECK(contains(refusal, "phases.1: the steps from here on need 16 samples of 16 tokens and the epoch caps"));
  CHECK(contains(refusal, "leave 2;"));  // 8 of 10 in the first, in which the others are web's
  CHECK_FALSE(std::filesystem::exists(run.paths.checkpoints() / "step-00000004"));
  TinyRun enough;
  CHECK(enough.run({capped, "phases=[{steps: 4}, {steps: 8, global_batch: 2, weights: {books: 1, web: 1}}]"}) ==
        ExitCode::finished);
}

TEST_CASE("a_layout_may_change_where_a_phase_begins_and_within_it") {
  RanksRun single;
  CHECK(single.run(three_phases) == ExitCode::finished);
  for (const std::int64_t stop : {4, 6}) {
    CAPTURE(stop);
    RanksRun moved;
    const std::vector<ExitCode> codes =
        moved.run_ranks(2, {three_phases[0], three_phases[1], "parallel.data=2", "parallel.zero=3"}, 0, stop);
    CHECK(all_are(codes, ExitCode::interrupted));
    CHECK(all_are(moved.run_ranks(4, {three_phases[0], three_phases[1], "parallel.tensor=2", "parallel.pipeline=2"}),
                  ExitCode::finished));
    check_same_losses(moved.metrics(), single.metrics());
    CHECK(Checkpoint(moved.checkpoint(12)).manifest().history == Checkpoint(single.checkpoint(12)).manifest().history);
  }
}

// Phases of one source: another weight is another mix, but no other order, so that the run is that without phases.
TEST_CASE("training_goes_back_behind_the_beginning_of_a_phase") {
  NoisyRun plain;
  CHECK(plain.run({policy("rollback")}) == ExitCode::finished);
  REQUIRE(plain.metrics().spikes.size() == 1);
  NoisyRun phases;
  CHECK(phases.run({policy("rollback"), "phases=[{steps: 16}, {steps: 24, weights: {'0': 2}}]"}) == ExitCode::finished);
  const Metrics metrics = phases.metrics();
  REQUIRE(metrics.spikes.size() == 1);
  CHECK(metrics.spikes[0].action == "rollback");
  REQUIRE(metrics.restarts.size() == 1);
  CHECK(metrics.restarts[0].step == 15);
  check_same_numbers(metrics, plain.metrics());
  REQUIRE(metrics.phases.size() == 2);
  CHECK(metrics.phases[1].step == 17);
  CHECK(history_of(phases.manifest(40)).tokens_consumed() == history_of(plain.manifest(40)).tokens_consumed());
}

// The checkpoint of the last step of a phase, which training went back to: it is replaced by one whose history is that
// of the next phase already, without the samples that are skipped.
TEST_CASE("a_checkpoint_that_was_saved_again_where_a_phase_begins_is_gone_on_with_to_the_bit") {
  const std::vector<std::string> settings = {policy("rollback"),
                                             "phases=[{steps: 15}, {steps: 25, weights: {'0': 2}}]"};
  NoisyRun whole;
  CHECK(whole.run(settings) == ExitCode::finished);
  REQUIRE(whole.metrics().restarts.size() == 1);
  CHECK(whole.metrics().restarts[0].step == 15);
  NoisyRun parts;
  CHECK(parts.run(settings, 25) == ExitCode::interrupted);  // before the step that follows the jump of step 25
  REQUIRE(parts.checkpoint_steps().front() == 15);
  CHECK(history_of(parts.manifest(15)).segments().size() == 2);
  CHECK(parts.run(settings) == ExitCode::finished);
  check_same_run(parts, whole, 40);
  CHECK(parts.metrics().phases.size() == 2);
  CHECK(parts.metrics().phases[1].step == 16);
  CHECK_FALSE(contains(text_of_log(parts), "data.train has changed"));
}

TEST_CASE("an_early_stop_and_a_longer_last_phase_need_nothing_more") {
  TinyRun whole;
  CHECK(whole.run({"phases=[{steps: 4, context: 8}, {steps: 8}]", "train.lr_schedule={type: constant}"}) ==
        ExitCode::finished);
  TinyRun longer;
  CHECK(longer.run({"train.steps=6", "phases=[{steps: 4, context: 8}, {steps: 2}]",
                    "train.lr_schedule={type: constant}", "evaluate.every=0"}) == ExitCode::finished);
  CHECK(longer.run({"phases=[{steps: 4, context: 8}, {steps: 8}]", "train.lr_schedule={type: constant}"}) ==
        ExitCode::finished);
  CHECK(longer.noticed("phases"));
  CHECK(losses_by_step(longer.metrics()) == losses_by_step(whole.metrics()));
  RisingRun stopping;
  CHECK(stopping.run({"phases=[{steps: 3, context: 4}, {steps: 11}]",
                      "early_stop={metric: validation/a/loss, patience: 2}"}) == ExitCode::finished);
  CHECK(stopping.metrics().early_stops.size() == 1);
}

// As a kill leaves it: metrics of steps that no checkpoint has.
TEST_CASE("a_run_that_is_killed_behind_the_beginning_of_a_phase_begins_it_again") {
  const std::vector<std::string> settings = {three_phases[0], three_phases[1], "checkpoint.every=4",
                                             "checkpoint.keep=9"};
  TinyRun whole;
  CHECK(whole.run(settings) == ExitCode::finished);
  TinyRun killed;
  CHECK(killed.run(settings, 6) == ExitCode::interrupted);
  std::filesystem::remove_all(killed.checkpoint(6));
  CHECK(killed.run(settings) == ExitCode::finished);
  REQUIRE(killed.metrics().restarts.size() == 1);
  CHECK(killed.metrics().restarts[0].step == 4);
  CHECK(killed.metrics().phases.size() == 3);
  check_same_run(killed, whole, 12);
}
