// The loss-spike policy in the step loop: a stretch of noise in an otherwise easy text makes the loss jump.
#include "spike_runs.h"
#include "support/near.h"
#include "train/rollback.h"

using namespace scaletrain;

TEST_CASE("warn_records_the_spike_and_changes_nothing") {
  NoisyRun plain;
  plain.run();
  NoisyRun warned;
  warned.run({policy("warn")});
  const Metrics metrics = warned.metrics();
  check_same_numbers(metrics, plain.metrics());
  CHECK(tensors_of(warned.checkpoint(40)) == tensors_of(plain.checkpoint(40)));
  REQUIRE(metrics.spikes.size() == 1);
  const SpikeRecord& spike = metrics.spikes[0];
  CHECK(spike.step == 25);
  CHECK(spike.action == "warn");
  CHECK(spike.samples == samples_of_step_25);
  CHECK(spike.loss == metrics.steps[24].loss);
  double mean = 0;
  for (std::size_t step = 17; step <= 24; ++step) mean += metrics.steps[step - 1].loss / 8;
  CHECK(spike.mean == Near(mean));
  CHECK(spike.zscore > 6);
  CHECK(spike.zscore == Near((spike.loss - spike.mean) / spike.deviation));
  CHECK(metrics.skips.empty());
  CHECK(contains(warned.log(), "step 25: the loss jumped"));
  // The window does not hold the spike: 32 to 40 without it would be nine, so of 8 all are of ordinary steps.
  CHECK(warned.manifest(30).scalars.at("spike.row") == "0");
  CHECK_FALSE(plain.manifest(30).scalars.contains("spike.losses"));
}

TEST_CASE("skip_leaves_weights_and_optimizer_untouched_and_trains_on_the_next_samples") {
  NoisyRun run;
  CHECK(run.run({policy("skip"), "checkpoint.every=1", "checkpoint.keep=100"}) == ExitCode::finished);
  const Metrics metrics = run.metrics();
  REQUIRE(metrics.spikes.size() == 1);
  CHECK(metrics.spikes[0].action == "skip");
  REQUIRE(metrics.skips.size() == 1);
  CHECK(metrics.skips[0].step == 25);
  CHECK(metrics.skips[0].reason == "spike");
  CHECK(metrics.skips[0].samples == samples_of_step_25);
  CHECK(tensors_of(run.checkpoint(24)) == tensors_of(run.checkpoint(25)));
  CHECK(tensors_of(run.checkpoint(25)) != tensors_of(run.checkpoint(26)));
  CHECK(run.manifest(25).scalars.at("updates") == "24");
  CHECK(run.manifest(40).scalars.at("updates") == "39");
  CHECK(run.manifest(40).scalars.at("nonfinite.total") == "0");
  CHECK(metrics.steps.size() == 40);
}

TEST_CASE("a_run_that_is_resumed_in_the_middle_of_a_window_decides_the_same") {
  NoisyRun whole;
  whole.run({policy("skip")});
  for (const int interrupted : {3, 20, 24, 25, 27}) {
    CAPTURE(interrupted);
    NoisyRun parts;
    CHECK(parts.run({policy("skip")}, interrupted) == ExitCode::interrupted);
    CHECK(parts.run({policy("skip")}) == ExitCode::finished);
    const Metrics metrics = parts.metrics();
    check_same_numbers(metrics, whole.metrics());
    REQUIRE(metrics.spikes.size() == 1);
    CHECK(metrics.spikes[0].zscore == whole.metrics().spikes.at(0).zscore);
    CHECK(metrics.spikes[0].step == 25);
    CHECK(parts.manifest(40).scalars == whole.manifest(40).scalars);
  }
}

TEST_CASE("a_rolled_back_run_is_to_the_bit_the_one_that_never_saw_the_samples") {
  // With early stopping the state of its policy goes back too, though it never ends the run.
  const std::vector<std::string> early_stop = {"early_stop={metric: validation/a/loss, patience: 30, min_delta: 0.5}",
                                               "evaluate.every=4"};
  for (const auto& overrides : {std::vector<std::string>(), early_stop}) {
    CAPTURE(overrides.size());
    NoisyRun went_back;
    NoisyRun never_saw;
    for (NoisyRun* run : {&went_back, &never_saw})
      run->overrides_always.insert(run->overrides_always.end(), overrides.begin(), overrides.end());
    CHECK(went_back.run({policy("rollback")}) == ExitCode::finished);
    check_one_rollback(went_back);
    CHECK(never_saw.run({}, 15) == ExitCode::interrupted);
    leave_out(never_saw.checkpoint(15), 60, 40);
    CHECK(never_saw.run() == ExitCode::finished);
    check_never_saw(went_back, never_saw);
  }
}

TEST_CASE("a_run_that_ends_after_a_rollback_goes_on_from_there") {
  NoisyRun whole;
  whole.run({policy("rollback")});
  // Steps until the interruption, those before the rollback included: right after it, and some steps later.
  for (const int interrupted : {25, 26, 29}) {
    CAPTURE(interrupted);
    NoisyRun parts;
    CHECK(parts.run({policy("rollback")}, interrupted) == ExitCode::interrupted);
    CHECK(parts.metrics().steps.size() == static_cast<std::size_t>(15 + interrupted - 25));
    CHECK(parts.run({policy("rollback")}) == ExitCode::finished);
    check_same_numbers(parts.metrics(), whole.metrics());
    CHECK(tensors_of(parts.checkpoint(40)) == tensors_of(whole.checkpoint(40)));
    CHECK(history_of(parts.manifest(40)) == history_of(whole.manifest(40)));
  }
}

TEST_CASE("a_crash_after_a_rollback_restarts_from_the_same_branch") {
  NoisyRun run;
  // From the checkpoint that the rollback will quarantine.
  CHECK(run.run({policy("rollback")}, 20) == ExitCode::interrupted);
  const StartPoint start = run.prepare(run.config({policy("rollback")}));
  REQUIRE(start.step == 20);
  struct Crash {};
  run.hooks.entered = [](std::int64_t step, bool) {
    if (step == 17) throw Crash();
  };
  CHECK_THROWS_AS(run.train(start), Crash);
  REQUIRE(run.metrics().restarts.size() == 2);
  run.hooks.entered = {};
  const StartPoint again = restart_point(run.paths, start, [](const std::string&) {});
  CHECK(again.step == 15);
  CHECK(again.generation > start.generation);
  CHECK(run.train(again) == ExitCode::finished);
  NoisyRun whole;
  whole.run({policy("rollback")});
  check_same_numbers(run.metrics(), whole.metrics());
}

TEST_CASE("ranks_go_back_together_and_end_with_the_bits_of_ranks_that_never_saw_the_samples") {
  const std::vector<std::string> layout = {"parallel.data=2", "parallel.tensor=2"};
  NoisyRun went_back;
  std::vector<std::string> overrides = layout;
  overrides.push_back(policy("rollback"));
  REQUIRE(all_are(went_back.run_ranks(4, overrides), ExitCode::finished));
  check_one_rollback(went_back);
  for (const int rank : {1, 2, 3}) CHECK(contains(went_back.log(rank), "training went back from step 25 to step 15"));
  NoisyRun never_saw;
  REQUIRE(all_are(never_saw.run_ranks(4, layout, 0, 15), ExitCode::interrupted));
  leave_out(never_saw.checkpoint(15), 60, 40);
  REQUIRE(all_are(never_saw.run_ranks(4, layout), ExitCode::finished));
  check_never_saw(went_back, never_saw);
}

TEST_CASE("a_save_that_is_under_way_ends_before_training_goes_back") {
  // That of step 24 is being written when step 25 jumps.
  const std::vector<std::string> common = {policy("rollback"), "checkpoint.every=4", "checkpoint.keep=100"};
  NoisyRun plain;
  REQUIRE(plain.run(common) == ExitCode::finished);
  CHECK(plain.metrics().restarts.at(0).step == 16);
  CHECK(plain.abandoned().size() == 2);  // of 20 and 24, and 16 as it was before
  for (const std::string layout : {"parallel.data=1", "parallel.data=2"}) {
    CAPTURE(layout);
    NoisyRun run;
    std::vector<std::string> overrides = common;
    overrides.insert(overrides.end(), {"checkpoint.background=true", layout});
    if (layout == "parallel.data=1") {
      REQUIRE(run.run(overrides) == ExitCode::finished);
      check_same_numbers(run.metrics(), plain.metrics());
      CHECK(tensors_of(run.checkpoint(40)) == tensors_of(plain.checkpoint(40)));
    } else {
      REQUIRE(all_are(run.run_ranks(2, overrides), ExitCode::finished));
      check_same_losses(run.metrics(), plain.metrics());
    }
    CHECK(run.abandoned() == plain.abandoned());
    CHECK(history_of(run.manifest(40)) == history_of(plain.manifest(40)));
    CHECK(run.metrics().checkpoints.size() == 11);  // that of step 16 again, with what is skipped
    for (const CheckpointRecord& record : run.metrics().checkpoints) CHECK(record.failure.empty());
  }
}

TEST_CASE("ranks_skip_the_same_step_and_none_alone") {
  NoisyRun run;
  REQUIRE(all_are(run.run_ranks(4, {"parallel.data=2", "parallel.tensor=2", "parallel.zero=3", policy("skip"),
                                    "checkpoint.every=1", "checkpoint.keep=3", "train.steps=26"}),
                  ExitCode::finished));
  REQUIRE(run.metrics().skips.size() == 1);
  CHECK(run.metrics().skips[0].step == 25);
  CHECK(tensors_of(run.checkpoint(24)) == tensors_of(run.checkpoint(25)));
  for (const int rank : {0, 1, 2, 3}) CHECK(contains(run.log(rank), "step 25 was skipped"));
}

TEST_CASE("without_a_checkpoint_to_go_back_to_the_update_is_skipped_instead") {
  NoisyRun run;
  CHECK(run.run({policy("rollback"), "checkpoint.every=0"}) == ExitCode::finished);
  const Metrics metrics = run.metrics();
  CHECK(metrics.restarts.empty());
  REQUIRE(metrics.spikes.size() == 1);
  CHECK(metrics.spikes[0].action == "skip");
  REQUIRE(metrics.skips.size() == 1);
  CHECK(metrics.skips[0].samples == samples_of_step_25);
  CHECK(contains(run.log(), "no checkpoint to go back to"));
  CHECK(run.manifest(40).scalars.at("updates") == "39");
}

TEST_CASE("a_mix_that_has_no_samples_to_spare_is_not_skipped_through") {
  NoisyRun run;
  // 248 samples once: 160 steps' worth is needed, and 40 more after the rollback.
  CHECK(run.run({policy("rollback"), "train.steps=55", "data.train=[{path: train.txt, epochs: 1}]"}) ==
        ExitCode::finished);
  CHECK(run.metrics().restarts.empty());
  CHECK(run.metrics().skips.size() == 1);
  CHECK(contains(run.log(), "epoch caps"));
}

TEST_CASE("a_process_that_lost_the_run_quarantines_nothing") {
  NoisyRun run;
  run.hooks.may_commit = [&run] { return run.checkpoint_steps().size() < 4; };
  message_of<InputError>([&] { run.run({policy("rollback")}); });
  CHECK(run.abandoned().empty());
  CHECK(run.metrics().spikes.at(0).action == "skip");
}

TEST_CASE("spikes_that_do_not_end_stop_the_run_after_three_rollbacks_with_the_samples_named") {
  // Noise to the end; only the checkpoints of steps 15 and 20 are there at the first spike.
  for (const bool by_ranks : {false, true}) {
    CAPTURE(by_ranks);
    NoisyRun run(38);
    std::vector<std::string> overrides = {policy("rollback"), "checkpoint.keep=2"};
    if (by_ranks) overrides.emplace_back("parallel.data=2");
    const std::string text = message_of<DivergedError>([&] {
      if (by_ranks) {
        run.run_ranks(2, overrides);
      } else {
        run.run(overrides);
      }
    });
    CHECK(contains(text, "train.spike"));
    CHECK(contains(text, "3 rollbacks"));
    CHECK(contains(text, "metrics.jsonl"));
    CHECK(contains(text, "newest checkpoint is that of step 15"));
    const Metrics metrics = run.metrics();
    CHECK(metrics.restarts.size() == 3);
    REQUIRE(metrics.spikes.size() == 4);
    for (std::size_t i = 0; i < 3; ++i) CHECK(metrics.spikes[i].action == "rollback");
    CHECK(metrics.spikes[3].action == "stop");
    // Step 16 again and again, each time on the next samples.
    CHECK(metrics.spikes[3].step == 16);
    CHECK(metrics.spikes[1].samples.front() == 100);
    CHECK(metrics.spikes[3].samples == std::vector<std::uint64_t>{108, 109, 110, 111});
    CHECK(metrics.steps.size() == 16);
    CHECK(run.checkpoint_steps().front() == 15);
    if (by_ranks) CHECK(contains(run.log(1), "training went back from step 16 to step 15"));
  }
}

TEST_CASE("a_long_stretch_of_another_text_becomes_the_level_that_losses_are_measured_against") {
  NoisyRun run(38);
  CHECK(run.run({policy("skip")}) == ExitCode::finished);
  const Metrics metrics = run.metrics();
  REQUIRE(metrics.spikes.size() == 8);  // the window
  CHECK(metrics.spikes.front().step == 25);
  CHECK(metrics.spikes.back().step == 32);
  CHECK(contains(run.log(), "measured anew"));
}

TEST_CASE("the_checkpoint_to_go_back_to_is_the_newest_whole_one_before_the_window") {
  NoisyRun run;
  run.run({"train.steps=20"});
  std::vector<std::string> reports;
  const auto chosen = [&](std::int64_t step, std::int64_t reach) -> std::int64_t {
    const auto found = checkpoint_before(run.paths.checkpoints(), step, reach,
                                         [&](const std::string& text) { reports.push_back(text); });
    return found ? found->manifest().step : -1;
  };
  CHECK(chosen(21, 5) == 15);
  CHECK(chosen(21, 6) == 10);
  CHECK(chosen(20, 0) == 15);   // that of the spike's own step holds what must not be seen
  CHECK(chosen(12, 100) == 5);  // none is that old
  CHECK(chosen(5, 0) == -1);
  CHECK(chosen(6, 100) == 5);
  CHECK(reports.empty());
  // Damaged ones are passed over by name.
  const auto damage = [&run](std::int64_t step) {
    const auto file = run.checkpoint(step) / "model-00000.safetensors";
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(5000) << "damaged";
  };
  damage(15);
  CHECK(chosen(21, 5) == 10);
  REQUIRE(reports.size() == 1);
  CHECK(contains(reports[0], "step-00000015"));
  CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{20, 10, 5});
  damage(5);
  damage(10);
  CHECK(chosen(21, 5) == 20);  // better than nothing
  CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{20});
}

TEST_CASE("the_samples_from_the_checkpoint_to_the_spike_are_left_out_also_where_the_batch_or_the_mix_has_changed") {
  const auto consumed = [](ConsumptionHistory history, int batches) {
    for (int i = 0; i < batches; ++i) history.consume_batch(64);
    return history;
  };
  const auto history_without = [](const ConsumptionHistory& now, ConsumptionHistory went_back, std::int64_t last) {
    went_back.go_on_like(now, last + 1);
    return went_back;
  };
  const auto data = [](std::uint64_t hash) {
    return DataDescription{.hash = hash, .sources = {{.identity = hash, .samples_per_epoch = 1000}}};
  };
  ConsumptionHistory begin;
  begin.continue_with(data(7), 16, 4);
  const ConsumptionHistory restored = consumed(begin, 5);
  ConsumptionHistory left = history_without(consumed(restored, 3), restored, 31);
  CHECK(left.batch() == std::vector<std::int64_t>{32, 33, 34, 35});
  CHECK(left.samples_consumed() == 20);
  // A second time, further on.
  left = history_without(consumed(left, 2), restored, 39);
  CHECK(left.batch() == std::vector<std::int64_t>{40, 41, 42, 43});
  CHECK(left.segments().back().skipped == std::vector<SkippedRange>{{.first = 20, .count = 20}});
  // Another global batch since the checkpoint: the numbers go on.
  ConsumptionHistory larger = restored;
  larger.continue_with(data(7), 16, 8);
  left = history_without(consumed(larger, 2), restored, 35);
  CHECK(left.batch() == std::vector<std::int64_t>{36, 37, 38, 39, 40, 41, 42, 43});
  // Another mix: the numbers are the new one's.
  ConsumptionHistory other = restored;
  other.continue_with(data(8), 16, 4);
  const std::int64_t first = other.next_sample();
  other = consumed(other, 2);
  left = history_without(other, restored, first + 7);
  CHECK(left.segments().size() == 2);
  CHECK(left.batch().front() == first + 8);
}

TEST_CASE("where_no_checkpoint_is_older_than_the_window_that_is_said") {
  NoisyRun run;
  CHECK(run.run({"train.spike={window: 12, zscore: 5, action: rollback}", "checkpoint.keep=2"}) == ExitCode::finished);
  const Metrics metrics = run.metrics();
  REQUIRE(metrics.spikes.size() == 1);
  CHECK(metrics.spikes[0].action == "rollback");
  CHECK(metrics.spikes[0].within_window);
  CHECK(metrics.restarts.at(0).step == 15);  // 13 to 24 are the window
  CHECK(contains(metrics.restarts.at(0).cause, "the loss jumped at step 25"));
  CHECK(contains(run.log(), "no checkpoint is as old as training was to go back"));
  CHECK(contains(run.log(), "Raise checkpoint.keep"));
}

TEST_CASE("what_a_rollback_skips_is_in_a_checkpoint_before_the_next_step") {
  NoisyRun run;
  struct Crash {};
  run.hooks.entered = [went_back = false](std::int64_t step, bool) mutable {
    went_back = went_back || step == 25;
    if (went_back && step == 16) throw Crash();
  };
  CHECK_THROWS_AS(run.run({policy("rollback")}), Crash);
  run.hooks.entered = {};
  CHECK(run.manifest(15).generation == 1);
  CHECK(history_of(run.manifest(15)).segments().at(0).skipped == std::vector<SkippedRange>{{.first = 60, .count = 40}});
  CHECK(run.manifest(15).scalars.at("spike.rollbacks") == "1");
  CHECK(run.run({policy("rollback")}) == ExitCode::finished);
  // The noise is not met again.
  CHECK(run.metrics().spikes.size() == 1);
  NoisyRun whole;
  whole.run({policy("rollback")});
  check_same_numbers(run.metrics(), whole.metrics());
  CHECK(tensors_of(run.checkpoint(40)) == tensors_of(whole.checkpoint(40)));
}

TEST_CASE("a_rollback_beyond_the_checkpoint_that_resume_named_is_gone_on_with_by_the_same_command") {
  NoisyRun run;
  CHECK(run.run({policy("rollback")}, 20) == ExitCode::interrupted);
  const std::string named = run.checkpoint(20).string();
  struct Crash {};
  run.hooks.entered = [went_back = false](std::int64_t step, bool) mutable {
    went_back = went_back || step == 25;
    if (went_back && step == 17) throw Crash();
  };
  CHECK_THROWS_AS(run.run({policy("rollback")}, -1, named), Crash);
  run.hooks.entered = {};
  REQUIRE_FALSE(std::filesystem::exists(named));  // of the branch that training left
  const StartPoint again = run.prepare(run.config({policy("rollback")}), named);
  CHECK(again.step == 15);
  CHECK(run.noticed("already went on from"));
  CHECK(run.train(again) == ExitCode::finished);
  NoisyRun whole;
  whole.run({policy("rollback")});
  check_same_numbers(run.metrics(), whole.metrics());
}

TEST_CASE("there_is_no_verdict_on_the_first_steps_whatever_their_losses_are") {
  NoisyRun run(0);
  // The first steps' losses fall from that of an untrained model, and a window of the shortest kind fills at step 8.
  CHECK(run.run({policy("skip"), "train.steps=8", "train.optimizer.learning_rate=0.5", "train.clip_norm=null"}) ==
        ExitCode::finished);
  CHECK(run.metrics().spikes.empty());
  CHECK(run.metrics().skips.empty());
}

TEST_CASE("sample_ids_of_a_spike_are_those_of_all_replicas_and_micro_batches_on_any_layout") {
  for (const std::vector<std::string>& layout :
       {std::vector<std::string>{"parallel.data=2", "parallel.tensor=2"}, {"parallel.data=2", "parallel.pipeline=1"}}) {
    const int ranks = layout[1] == "parallel.tensor=2" ? 4 : 2;
    for (const std::string action : {"warn", "skip"}) {
      CAPTURE(ranks);
      CAPTURE(action);
      NoisyRun run;
      // The window is filled on one rank with all micro-batches, and judged on several.
      CHECK(run.run({policy(action)}, 22) == ExitCode::interrupted);
      std::vector<std::string> overrides = layout;
      overrides.push_back(policy(action));
      REQUIRE(all_are(run.run_ranks(ranks, overrides), ExitCode::finished));
      const Metrics metrics = run.metrics();
      REQUIRE(metrics.spikes.size() == 1);
      CHECK(metrics.spikes[0].step == 25);
      CHECK(metrics.spikes[0].action == action);
      CHECK(metrics.spikes[0].samples == samples_of_step_25);
      CHECK(metrics.skips.size() == (action == "skip" ? 1 : 0));
    }
  }
}
