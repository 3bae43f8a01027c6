// The step loop, end to end through the assembly.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>

#include "support/near.h"
#include "train/start/initial_weights.h"
#include "train_helpers.h"

using namespace scaletrain;

TEST_CASE("a run writes its metrics, evaluations, checkpoints and logs") {
  TinyRun run;
  run.hooks.entered = [](std::int64_t, bool) {};
  CHECK(run.run() == ExitCode::finished);
  const Metrics metrics = run.metrics();
  REQUIRE(metrics.starts.size() == 1);
  CHECK(metrics.starts[0].world == 1);
  CHECK(metrics.starts[0].seed == 7);
  // 257·16 + 16·16 positions; block: 2 norms of 2·16, attention 4·(16·16+16), ffn 16·24+24 + 24·16+16; final norm 2·16.
  CHECK(metrics.starts[0].parameters == 257 * 16 + 16 * 16 + 64 + 4 * 272 + 408 + 400 + 32);
  CHECK(metrics.starts[0].version == "test");
  REQUIRE(metrics.steps.size() == 12);
  for (std::size_t i = 0; i < 12; ++i) {
    const StepRecord& step = metrics.steps[i];
    CHECK(step.step == static_cast<std::int64_t>(i + 1));
    CHECK(step.tokens == static_cast<std::int64_t>(i + 1) * 4 * 16);
    CHECK(std::isfinite(step.loss));
    CHECK(step.grad_norm > 0.0);
    CHECK(step.tokens_per_second == Near(64.0 / step.step_seconds));
    CHECK(step.mfu == 0.0);  // not measured here
  }
  // log(257) at the start, and learning.
  CHECK(metrics.steps[0].loss == Near(std::log(257.0)).epsilon(0.02));
  CHECK(metrics.steps[11].loss < metrics.steps[0].loss - 0.5);
  CHECK(metrics.steps[0].learning_rate == Near(5e-3));  // half of the warm-up
  CHECK(metrics.steps[1].learning_rate == Near(1e-2));
  CHECK(metrics.steps[11].learning_rate == Near(1e-3));
  // Two sets at steps 4, 8 and 12.
  REQUIRE(metrics.evaluations.size() == 6);
  for (std::size_t i = 0; i < 6; ++i) {
    CHECK(metrics.evaluations[i].step == static_cast<std::int64_t>(4 + i / 2 * 4));
    CHECK(metrics.evaluations[i].dataset == (i % 2 == 0 ? "a" : "b"));
    CHECK(metrics.evaluations[i].tokens == 64);  // one global batch
  }
  REQUIRE(metrics.checkpoints.size() == 3);
  CHECK(metrics.checkpoints[2].step == 12);
  CHECK(metrics.checkpoints[2].failure.empty());
  CHECK(metrics.checkpoints[2].bytes > 3 * 4 * metrics.starts[0].parameters);
  REQUIRE(metrics.ends.size() == 1);
  CHECK(metrics.ends[0].step == 12);
  CHECK(metrics.ends[0].reason == "finished");
  CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{12, 10, 5});
  CHECK(contains(TempFolder::read(run.paths.folder / "logs" / "rank-00000.log"), "step 12: saved"));
}

TEST_CASE("throughput counts the tokens that a batch trains on, not its padding") {
  TinyRun run;
  // Eight tokens are seven targets: a sample of 16 is more than half padding.
  run.folder.write("short.txt", "abcdefg");
  run.run({"data.train=[{path: short.txt}]"});
  const Metrics metrics = run.metrics();
  REQUIRE(metrics.steps.size() == 12);
  for (const StepRecord& step : metrics.steps) CHECK(step.tokens_per_second == Near(4 * 7 / step.step_seconds));
}

TEST_CASE("the last step is evaluated and saved whatever the intervals") {
  TinyRun run;
  run.run({"evaluate.every=0", "checkpoint.every=0", "train.steps=3"});
  const Metrics metrics = run.metrics();
  REQUIRE(metrics.evaluations.size() == 2);
  CHECK(metrics.evaluations[0].step == 3);
  CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{3});
}

TEST_CASE("steps of keep_every are saved and stay, whatever the other interval") {
  TinyRun run;
  run.run({"checkpoint.every=5", "checkpoint.keep=2", "checkpoint.keep_every=3"});
  std::vector<std::int64_t> steps = run.checkpoint_steps();
  std::sort(steps.begin(), steps.end());
  CHECK(steps == std::vector<std::int64_t>{3, 6, 9, 10, 12});  // 5 went when there were two newer ones
  TinyRun alone;
  alone.run({"checkpoint.every=0", "checkpoint.keep=2", "checkpoint.keep_every=4"});
  CHECK(alone.checkpoint_steps().size() == 3);
}

TEST_CASE("a batch that does not divide into micro-batches has the losses of one that does") {
  TinyRun even;
  even.run({"train.global_batch=5", "train.micro_batch=5"});
  TinyRun uneven;
  uneven.run({"train.global_batch=5", "train.micro_batch=2"});
  const Metrics a = even.metrics();
  const Metrics b = uneven.metrics();
  REQUIRE(a.steps.size() == 12);
  REQUIRE(b.steps.size() == 12);
  for (std::size_t i = 0; i < a.steps.size(); ++i) {
    CAPTURE(i);
    CHECK(b.steps[i].tokens == a.steps[i].tokens);
    CHECK(b.steps[i].loss == Near(a.steps[i].loss).epsilon(1e-5));
    CHECK(b.steps[i].grad_norm == Near(a.steps[i].grad_norm).epsilon(1e-4));
  }
}

TEST_CASE("evaluation leaves training as it is") {
  TinyRun with;
  with.run({"evaluate.every=1", "evaluate.batches=0"});
  TinyRun without;
  without.run({"evaluate.every=0"});
  const Metrics a = with.metrics();
  const Metrics b = without.metrics();
  REQUIRE(a.steps.size() == b.steps.size());
  for (std::size_t i = 0; i < a.steps.size(); ++i) {
    CHECK(a.steps[i].loss == b.steps[i].loss);
    CHECK(a.steps[i].grad_norm == b.steps[i].grad_norm);
  }
  // All of set b: every byte but the first and the end-of-document token behind the last are targets.
  CHECK(a.evaluations.at(1).tokens >= 150);
}

TEST_CASE("the loss is the mean over all unmasked tokens of the global batch, however the masks lie") {
  // Short documents whose first tokens bear no loss: windows differ in how many targets they have.
  const auto losses = [](int micro_batch) {
    TinyRun run;
    std::string text;
    for (int i = 0; i < 300; ++i) text += std::string(static_cast<std::size_t>(1 + i * i % 13), 'a' + i % 7) + "\n--\n";
    run.folder.write("train.txt", text);
    run.overrides_always = {"data.train=[{path: train.txt, separator: '--'}]", "data.documents.loss_across=false",
                            "train.micro_batch=" + std::to_string(micro_batch), "train.optimizer.learning_rate=1e-3",
                            "train.steps=6"};
    run.run();
    return run.metrics().steps;
  };
  const auto whole = losses(4);
  const auto single = losses(1);
  REQUIRE(whole.size() == 6);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    CHECK(single[i].loss == Near(whole[i].loss).epsilon(1e-6));
    CHECK(single[i].grad_norm == Near(whole[i].grad_norm).epsilon(1e-4));
  }
}

TEST_CASE("training that diverges stops after the policy's count with the weights untouched and the samples named") {
  TinyRun run;
  // Decay of 1e9 a step: the weights grow until products of them overflow.
  run.overrides_always = {"train.optimizer.learning_rate=1e6",
                          "train.optimizer.weight_decay=1000",
                          "train.lr_schedule={type: constant, warmup: 0}",
                          "train.nonfinite.skip=2",
                          "checkpoint.every=1",
                          "checkpoint.keep=10",
                          "evaluate.every=0"};
  const std::string text = message_of<DivergedError>([&] { run.run(); });
  const Metrics metrics = run.metrics();
  REQUIRE(metrics.skips.size() == 3);
  const std::int64_t first = metrics.skips[0].step;
  REQUIRE(first > 1);
  CHECK(contains(text, "train.nonfinite.skip"));
  CHECK(contains(text, "metrics.jsonl"));
  // What is merely due is not saved while no update is made: the last good states stay.
  CHECK(contains(text, "newest checkpoint is that of step " + std::to_string(first - 1)));
  CHECK(contains(text, "--set train.optimizer.learning_rate=5e+05 (it is 1e+06)"));
  CHECK(contains(text, "--resume " + (run.paths.checkpoints() / "step-").string()));
  CHECK(metrics.steps.back().step == first + 2);
  for (std::int64_t i = 0; i < 3; ++i) {
    const SkipRecord& skip = metrics.skips[static_cast<std::size_t>(i)];
    CHECK(skip.step == first + i);
    const auto sample = static_cast<std::uint64_t>(4 * (first + i - 1));  // step s trains on 4(s-1) .. 4s-1
    CHECK(skip.samples == std::vector<std::uint64_t>{sample, sample + 1, sample + 2, sample + 3});
    CHECK(contains(skip.reason, "finite"));
  }
  CHECK(run.checkpoint_steps().front() == first - 1);
  const std::vector<float> before = tensors_of(run.checkpoint(first - 1));
  CHECK(std::all_of(before.begin(), before.end(), [](float value) { return std::isfinite(value); }));
  // A run that leaves in between saves all the same, with weights and moments as they were.
  CHECK(run.run({}, 2) == ExitCode::interrupted);
  CHECK(run.checkpoint_steps().front() == first + 1);
  CHECK(before == tensors_of(run.checkpoint(first + 1)));
  CHECK(Checkpoint(run.checkpoint(first + 1)).manifest().scalars.at("updates") == std::to_string(first - 1));
  // The count goes on after a resume: the next non-finite step is one too many.
  CHECK(contains(message_of<DivergedError>([&] { run.run(); }), "train.nonfinite.skip"));
  CHECK(run.metrics().steps.back().step == first + 2);
}

TEST_CASE("a fixed loss scale under which every step overflows fp16 is told once, with what to do") {
  TinyRun run;
  run.run({"precision.compute=fp16", "precision.loss_scale=1e9", "train.nonfinite.skip=20", "evaluate.every=0"});
  const std::vector<SkipRecord> skips = run.metrics().skips;
  REQUIRE(skips.size() == 12);
  CHECK(skips.front().reason == "nonfinite_gradient");
  CHECK(to_text(SkipReason::overflow) == overflow_skip);  // which the end does not tell
  const std::string log = TempFolder::read(run.paths.logs() / "rank-00000.log");
  const std::string remedy = "lower precision.loss_scale, which is 1000000000, or take dynamic";
  const std::size_t told = log.find(remedy);
  REQUIRE(told != std::string::npos);
  CHECK(told < log.find("step 2 was skipped"));
  CHECK(log.find(remedy, told + 1) == std::string::npos);
  CHECK(log.find("12 of 12 steps were skipped and changed no weight (`skip` lines of metrics.jsonl); the last 12 among "
                 "them: the weights are those of step 0") != std::string::npos);
}

TEST_CASE("the start tells what is computed again in the backward, where something is") {
  for (const std::string kind : {"none", "selective", "full"}) {
    CAPTURE(kind);
    TinyRun run;
    run.run({"train.recompute=" + kind, "train.steps=1", "train.lr_schedule.warmup=1", "evaluate.every=0"});
    const std::string log = TempFolder::read(run.paths.logs() / "rank-00000.log");
    const std::size_t start = log.find("training from step 0 on ");
    REQUIRE(start != std::string::npos);
    const std::string line = log.substr(start, log.find('\n', start) - start);
    CHECK(contains(line, ", train.recompute " + kind) == (kind != "none"));
    CHECK(contains(line, "recompute") == (kind != "none"));
  }
}

TEST_CASE("a run that is asked to leave during an evaluation saves first and evaluates when it is back") {
  const std::vector<std::string> stop_early = {"early_stop={metric: validation/a/loss, patience: 30}",
                                               "evaluate.every=4"};
  TinyRun whole;
  whole.overrides_always = stop_early;
  CHECK(whole.run() == ExitCode::finished);
  // The evaluations of step 4, 8 and 12, the last.
  for (const int given_up : {1, 2, 3}) {
    CAPTURE(given_up);
    TinyRun run;
    run.overrides_always = stop_early;
    int asked = 0;
    // Once for each of the two sets.
    run.hooks.interrupts_evaluation = [&] { return ++asked == 2 * given_up; };
    CHECK(run.run() == ExitCode::interrupted);
    CHECK(run.metrics().steps.back().step == 4 * given_up);
    CHECK(run.metrics().evaluations.size() == static_cast<std::size_t>(2 * (given_up - 1)));
    CHECK(run.checkpoint_steps().front() == 4 * given_up);
    run.hooks.interrupts_evaluation = {};
    CHECK(run.run() == ExitCode::finished);
    check_same_numbers(run.metrics(), whole.metrics());
    const auto scalars = [](const TinyRun& of) {
      auto all = Checkpoint(of.checkpoint(12)).manifest().scalars;
      all.erase("best_save_id");
      return all;
    };
    CHECK(scalars(run) == scalars(whole));
    CHECK(tensors_of(run.checkpoint(12)) == tensors_of(whole.checkpoint(12)));
    // The checkpoint that it left with has made way for the one that knows of the evaluation: no branch was abandoned.
    for (const auto& entry : std::filesystem::directory_iterator(run.paths.checkpoints()))
      CHECK_FALSE(entry.path().filename().string().starts_with("."));
    const StartPoint start = run.prepare(run.config());
    CHECK(already_complete(start, run.config().config));
  }
}

TEST_CASE("a resume whose schedule gives another learning rate says so") {
  TinyRun run;
  CHECK(run.run() == ExitCode::finished);
  CHECK(run.run({"train.steps=24"}) == ExitCode::finished);
  const std::string log = TempFolder::read(run.paths.logs() / "rank-00000.log");
  CHECK(contains(log, "step 13: the learning rate is 0.00"));
  TinyRun same;
  CHECK(same.run({}, 5) == ExitCode::interrupted);
  CHECK(same.run() == ExitCode::finished);
  CHECK_FALSE(contains(TempFolder::read(same.paths.logs() / "rank-00000.log"), "the learning rate is"));
}

TEST_CASE("a checkpoint that cannot be written does not stop training, unless it is the last") {
  TinyRun run;
  const auto block = [&run] {
    std::filesystem::remove_all(run.paths.checkpoints());
    run.folder.write("run/checkpoints", "in the way");
  };
  StartPoint start = run.prepare(run.config());
  block();
  const std::string text = message_of<InputError>([&] { run.train(start); });
  CHECK(contains(text, "checkpoints"));
  Metrics metrics = run.metrics();
  CHECK(metrics.steps.size() == 12);
  REQUIRE(metrics.checkpoints.size() == 3);
  for (const CheckpointRecord& checkpoint : metrics.checkpoints) CHECK(contains(checkpoint.failure, "checkpoints"));

  TinyRun mended;
  start = mended.prepare(mended.config({"checkpoint.background=false"}));  // failed before the next step begins
  std::filesystem::remove_all(mended.paths.checkpoints());
  mended.folder.write("run/checkpoints", "in the way");
  mended.hooks.entered = [&mended](std::int64_t step, bool) {
    if (step == 6) std::filesystem::remove(mended.paths.checkpoints());
  };
  CHECK(mended.train(start) == ExitCode::finished);
  metrics = mended.metrics();
  REQUIRE(metrics.checkpoints.size() == 3);
  CHECK_FALSE(metrics.checkpoints[0].failure.empty());
  CHECK(metrics.checkpoints[1].failure.empty());
  CHECK(mended.checkpoint_steps() == std::vector<std::int64_t>{12, 10});
}

TEST_CASE("a process that lost the run's lock commits no checkpoint") {
  TinyRun run;
  run.hooks.may_commit = [] { return false; };
  CHECK(contains(message_of<InputError>([&] { run.run(); }), "no longer owns the run"));
  CHECK(run.checkpoint_steps().empty());
}

TEST_CASE("the best checkpoint by the early-stop metric stays, however old it gets") {
  RisingRun run;
  CHECK(run.run({"early_stop={metric: validation/a/loss, patience: 100}"}) == ExitCode::finished);
  const Metrics metrics = run.metrics();
  std::int64_t best_step = 0;
  double best = INFINITY;
  for (const EvaluationRecord& evaluation : metrics.evaluations)
    if (evaluation.dataset == "a" && evaluation.loss < best) {
      best = evaluation.loss;
      best_step = evaluation.step;
    }
  REQUIRE(best_step < 9);  // older than the two newest, or the test shows nothing
  CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{14, 12, best_step});
}

TEST_CASE("the best checkpoint stays pinned across a resume, and is not pinned where the config says so") {
  RisingRun run;
  const std::string policy = "early_stop={metric: validation/a/loss, patience: 100}";
  CHECK(run.run({policy}, 7) == ExitCode::interrupted);
  CHECK(run.run({policy}) == ExitCode::finished);
  CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{14, 12, 2});
  RisingRun unpinned;
  unpinned.run({policy, "checkpoint.best=false"});
  CHECK(unpinned.checkpoint_steps() == std::vector<std::int64_t>{14, 12});
}

TEST_CASE("training stops early after the patience is used up, at the same step when resumed on the way") {
  const std::string policy = "early_stop={metric: validation/a/loss, patience: 3}";
  RisingRun whole;
  CHECK(whole.run({policy}) == ExitCode::finished);
  const Metrics metrics = whole.metrics();
  REQUIRE(metrics.early_stops.size() == 1);
  CHECK(metrics.early_stops[0].step == 8);  // best at 2, then 4, 6, 8
  CHECK(metrics.early_stops[0].metric == "validation/a/loss");
  CHECK(contains(metrics.early_stops[0].reason, "3 evaluations"));
  CHECK(metrics.steps.size() == 8);
  CHECK(metrics.ends.at(0).reason == "stopped early");
  CHECK(whole.checkpoint_steps().front() == 8);
  for (const int interrupted : {4, 5, 7}) {
    CAPTURE(interrupted);
    RisingRun parts;
    CHECK(parts.run({policy}, interrupted) == ExitCode::interrupted);
    CHECK(parts.run({policy}) == ExitCode::finished);
    check_same_numbers(metrics, parts.metrics());
    REQUIRE(parts.metrics().early_stops.size() == 1);
    CHECK(parts.metrics().early_stops[0].step == 8);
    CHECK(parts.metrics().early_stops[0].value == metrics.early_stops[0].value);
  }
  // Stopped is stopped; another policy goes on.
  LoadedConfig same = whole.config({policy});
  StartPoint start = whole.prepare(same);
  REQUIRE(already_complete(start, same.config).has_value());
  CHECK(contains(*already_complete(start, same.config), "stopped early at step 8"));
  const LoadedConfig patient = whole.config({"early_stop={metric: validation/a/loss, patience: 5}"});
  start = whole.prepare(patient);
  CHECK_FALSE(already_complete(start, patient.config).has_value());
  CHECK(whole.train(start) == ExitCode::finished);
  CHECK(whole.metrics().early_stops.back().step == 12);  // 10 and 12 make five
}

TEST_CASE("training stops as soon as the target is reached") {
  RisingRun run;
  CHECK(run.run({"early_stop={metric: validation/a/loss, patience: 3, target: 100}"}) == ExitCode::finished);
  CHECK(run.metrics().early_stops.at(0).step == 2);
  CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{2});
}

TEST_CASE("initial weights that do not exist are refused by name while the run still needs them") {
  TinyRun run;
  run.overrides_always = {"run.directory=" + run.paths.folder.string()};
  const Config plain = run.config().config;
  const ModelSpec model = make_model_spec(plain.model, 257);
  check_initial_weights(plain, model);
  const Config config = run.config({"model.init.from=nowhere"}).config;
  CHECK(contains(message_of<UserError>([&] { check_initial_weights(config, model); }), "model.init.from"));
  run.folder.write("nowhere/notes.txt", "");
  CHECK(message_of<InputError>([&] {
          check_initial_weights(config, model);
        }).starts_with("model.init.from: " + *config.model.init.from + ": the file \"config.json\" is missing"));
  run.run({}, 1);
  CHECK_NOTHROW(check_initial_weights(config, model));
}

TEST_CASE("pruning at a save reads neither what this process has written nor what it went on from") {
  // A byte that changes behind the run's back tells which are read.
  TinyRun run;
  run.overrides_always = {"checkpoint.background=false"};  // written before the next step begins
  const auto damage_at = [&](std::int64_t when, const std::string& checkpoint) {
    return [&run, when, checkpoint](std::int64_t step, bool) {
      if (step != when) return;
      const auto file = run.paths.checkpoints() / checkpoint / "model-00000.safetensors";
      std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
      stream.seekp(5000) << "damaged";
      CHECK(stream.good());
    };
  };
  run.hooks.entered = damage_at(11, "step-00000010");
  CHECK(run.run({"checkpoint.keep=2"}) == ExitCode::finished);
  CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{12, 10});
  const auto log = run.paths.folder / "logs" / "rank-00000.log";
  CHECK_FALSE(contains(TempFolder::read(log), "does not verify"));
  // Nor what was read for this process, which it went on from.
  run.hooks.entered = damage_at(13, "step-00000012");
  CHECK(run.run({"checkpoint.keep=2", "train.steps=14", "checkpoint.every=100"}) == ExitCode::finished);
  CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{14, 12});
  CHECK_FALSE(contains(TempFolder::read(log), "does not verify"));
}

TEST_CASE("a stopped run goes on when the files of its evaluation set hold other data, and says so") {
  const std::string policy = "early_stop={metric: validation/a/loss, patience: 3}";
  RisingRun run;
  CHECK(run.run({policy}) == ExitCode::finished);
  REQUIRE(run.metrics().steps.size() == 8);
  const LoadedConfig same = run.config({policy});
  const auto complete = [&] { return already_complete(run.prepare(same), same.config); };
  REQUIRE(complete().has_value());
  // The same bytes written anew are the same data; a set that cannot be opened is no other data either.
  const std::string before = TempFolder::read(run.folder / "a.txt");
  run.folder.write("a.txt", before);
  CHECK(complete().has_value());
  run.folder.write("a.txt", "");
  REQUIRE(complete().has_value());
  CHECK(contains(*complete(), "over the set as it was then, which cannot be opened now: "));
  run.folder.write("a.txt", std::string(200, 'z'));
  const StartPoint start = run.prepare(same);
  REQUIRE_FALSE(already_complete(start, same.config).has_value());
  CHECK(run.train(start) == ExitCode::finished);
  CHECK(run.metrics().steps.size() > 8);
  const std::string log = TempFolder::read(run.paths.logs() / "rank-00000.log");
  CHECK(contains(log, "step 8: validation/a/loss: it is now measured over other data than before"));
  // Judged anew: no sooner than after three more evaluations without improvement.
  for (const EarlyStopRecord& stop : run.metrics().early_stops) CHECK((stop.step == 8 || stop.step >= 8 + 2 * 3));
}
