// A resumed run is the undisturbed one, to the bit.
#include "checkpoint/load.h"
#include "support/near.h"
#include "train_helpers.h"

using namespace scaletrain;

TEST_CASE("a run that was interrupted twice has the numbers of an undisturbed one to the bit") {
  TinyRun whole;
  CHECK(whole.run() == ExitCode::finished);
  // Between checkpoints, right at one, at an evaluation, before the first step, before the last one.
  for (const std::pair<int, int>& moments : std::vector<std::pair<int, int>>{{3, 4}, {5, 1}, {4, 4}, {0, 7}, {1, 10}}) {
    const int first = moments.first;
    const int second = moments.second;
    CAPTURE(first);
    TinyRun parts;
    CHECK(parts.run({}, first) == ExitCode::interrupted);
    CHECK(parts.checkpoint_steps().front() == first);
    CHECK(parts.run({}, second) == ExitCode::interrupted);
    CHECK(parts.checkpoint_steps().front() == first + second);
    CHECK(parts.run() == ExitCode::finished);
    const Metrics metrics = parts.metrics();
    check_same_numbers(whole.metrics(), metrics);
    CHECK(metrics.starts.size() == 1);
    REQUIRE(metrics.restarts.size() == 2);
    CHECK(metrics.restarts[1].step == first + second);
    CHECK_FALSE(metrics.restarts[1].fingerprint_changed);
    CHECK(tensors_of(whole.checkpoint(12)) == tensors_of(parts.checkpoint(12)));
  }
}

TEST_CASE("a run with dropout drops the same after a resume, to the bit") {
  const auto with_dropout = [](TinyRun& run) { run.overrides_always.push_back("model.dropout=0.2"); };
  TinyRun plain;
  plain.run();
  TinyRun whole;
  with_dropout(whole);
  CHECK(whole.run() == ExitCode::finished);
  const auto loss = [](TinyRun& run) { return run.metrics().steps.back().loss; };
  CHECK(loss(whole) != loss(plain));
  TinyRun parts;
  with_dropout(parts);
  CHECK(parts.run({}, 3) == ExitCode::interrupted);
  CHECK(parts.run({}, 4) == ExitCode::interrupted);
  CHECK(parts.run() == ExitCode::finished);
  check_same_numbers(whole.metrics(), parts.metrics());
  CHECK(tensors_of(whole.checkpoint(12)) == tensors_of(parts.checkpoint(12)));
}

TEST_CASE("a run that died between checkpoints goes on from the newest and repeats the same numbers") {
  TinyRun whole;
  whole.run();
  TinyRun dying;
  dying.hooks.entered = [](std::int64_t step, bool) {
    if (step == 8) throw PeerError("killed");
  };
  const StartPoint start = dying.prepare(dying.config());
  CHECK_THROWS_AS(dying.train(start), PeerError);
  CHECK(dying.metrics().steps.size() == 8);
  const auto report = [&](const std::string& text) { dying.notices.push_back(text); };
  const StartPoint again = restart_point(dying.paths, start, report);
  CHECK(again.step == 5);
  CHECK(again.generation == start.generation + 1);
  CHECK_THROWS_AS(dying.train(again), PeerError);
  dying.hooks = {};
  CHECK(dying.train(restart_point(dying.paths, again, report)) == ExitCode::finished);
  check_same_numbers(whole.metrics(), dying.metrics());
}

TEST_CASE("a run that died before its first checkpoint begins again, with the same numbers") {
  TinyRun whole;
  whole.run();
  TinyRun dying;
  dying.hooks.entered = [](std::int64_t step, bool) {
    if (step == 3) throw PeerError("killed");
  };
  const StartPoint start = dying.prepare(dying.config());
  CHECK_THROWS_AS(dying.train(start), PeerError);
  dying.hooks = {};
  const StartPoint again = restart_point(dying.paths, start, [](const std::string&) {});
  CHECK_FALSE(again.checkpoint);
  CHECK(again.generation == 1);
  CHECK(dying.train(again) == ExitCode::finished);
  const Metrics metrics = dying.metrics();
  check_same_numbers(whole.metrics(), metrics);
  REQUIRE(metrics.restarts.size() == 1);
  CHECK(metrics.restarts[0].step == 0);
}

TEST_CASE("an older checkpoint that is asked for starts a new generation and quarantines the later ones") {
  TinyRun run;
  run.run();
  CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{12, 10, 5});
  const Metrics before = run.metrics();
  const std::string old = run.checkpoint(5).string() + "/";  // as a shell completes it
  const StartPoint start = run.prepare(run.config(), old);
  CHECK(start.step == 5);
  CHECK(start.generation == 1);
  CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{5});
  CHECK(run.noticed("quarantined"));
  CHECK(run.train(start) == ExitCode::finished);
  check_same_numbers(before, run.metrics());
  CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{12, 10, 5});
  CHECK(list_checkpoints(run.paths.checkpoints()).front().generation == 1);
}

TEST_CASE("another run's checkpoint can be gone on from in an empty run folder only") {
  TinyRun first;
  first.run();
  TinyRun second;
  const auto config = first.config();
  const std::string from = first.checkpoint(10).string();
  const StartPoint start = second.prepare(config, from);
  CHECK(start.step == 10);
  CHECK(second.train(start) == ExitCode::finished);
  CHECK(second.metrics().steps.size() == 2);
  CHECK(second.metrics().steps[1].loss == first.metrics().steps[11].loss);
  const std::string other = first.checkpoint(5).string();
  CHECK(contains(message_of<UserError>([&] { second.prepare(config, other); }), "holds checkpoints of its own"));
}

TEST_CASE("a resume by another run's path, interrupted and given again, goes on with what it had") {
  TinyRun whole;
  whole.run();
  const std::string from = whole.checkpoint(5).string();
  TinyRun branch;
  CHECK(branch.run({}, 3, from) == ExitCode::interrupted);
  CHECK(branch.run({}, 2, from + "/") == ExitCode::interrupted);
  CHECK(branch.noticed("already went on from"));
  CHECK(branch.checkpoint_steps().front() == 10);
  // Once the origin is gone its path still says what is meant; any other missing path does not.
  std::filesystem::remove_all(from);
  CHECK(contains(message_of<UserError>([&] { branch.prepare(branch.config(), from + "0"); }), "does not exist"));
  CHECK(branch.run({}, -1, from) == ExitCode::finished);
  CHECK(branch.metrics().steps.size() == 7);
  CHECK(branch.metrics().steps.back().loss == whole.metrics().steps.back().loss);
  CHECK(tensors_of(branch.checkpoint(12)) == tensors_of(whole.checkpoint(12)));
}

TEST_CASE("a resume of an older checkpoint of one's own, interrupted and given again, goes on with what it had") {
  TinyRun run;
  run.run();
  const Metrics before = run.metrics();
  const std::string old = run.checkpoint(5).string();
  CHECK(run.run({}, 3, old) == ExitCode::interrupted);
  CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{8, 5});
  run.notices.clear();
  CHECK(run.run({}, 1, old) == ExitCode::interrupted);
  CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{9, 8, 5});
  CHECK_FALSE(run.noticed("quarantined"));
  // Another one is another branch, also of this branch.
  const StartPoint other = run.prepare(run.config(), run.checkpoint(8).string());
  CHECK(other.step == 8);
  CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{8, 5});
  CHECK(run.train(other) == ExitCode::finished);
  check_same_numbers(before, run.metrics());
}

TEST_CASE("a worker that dies before it saved anything repeats the start that was asked for") {
  TinyRun run;
  run.run();
  run.prepare(run.config(), run.checkpoint(5).string());
  const StartPoint gone_on = run.prepare(run.config());
  REQUIRE(gone_on.step == 5);
  const std::string abandoned = (run.paths.checkpoints() / ".abandoned-step-00000010-0").string();
  const StartPoint start = run.prepare(run.config(), abandoned);
  CHECK(start.step == 10);
  const StartPoint again = restart_point(run.paths, start, [](const std::string&) {});
  REQUIRE(again.checkpoint);
  CHECK(*again.checkpoint == abandoned);
  CHECK(again.generation == start.generation + 1);
  CHECK(again.asked == start.asked);
  // What it saved counts from then on.
  CHECK(run.train(again, 1) == ExitCode::interrupted);
  const StartPoint later = restart_point(run.paths, again, [](const std::string&) {});
  CHECK(later.step == 11);
  CHECK(later.generation == again.generation + 1);
  CHECK(later.asked.empty());
}

TEST_CASE("more steps than before are gone on with, and a complete run is complete") {
  TinyRun run;
  run.run({"train.lr_schedule.type=constant"});
  const LoadedConfig same = run.config({"train.lr_schedule.type=constant"});
  const StartPoint done = run.prepare(same);
  const auto complete = already_complete(done, same.config);
  REQUIRE(complete.has_value());
  CHECK(contains(*complete, "step 12 of 12"));
  CHECK(contains(*complete, "train.steps"));
  const LoadedConfig longer = run.config({"train.lr_schedule.type=constant", "train.steps=15"});
  run.notices.clear();
  const StartPoint start = run.prepare(longer);
  CHECK(run.noticed("train.steps: 12 in the checkpoint, 15 now"));
  CHECK_FALSE(already_complete(start, longer.config).has_value());
  CHECK(run.train(start) == ExitCode::finished);
  TinyRun whole;
  whole.run({"train.lr_schedule.type=constant", "train.steps=15"});
  const Metrics a = whole.metrics();
  const Metrics b = run.metrics();
  REQUIRE(a.steps.size() == b.steps.size());
  for (std::size_t i = 0; i < a.steps.size(); ++i) CHECK(a.steps[i].loss == b.steps[i].loss);
  CHECK_FALSE(already_complete(StartPoint{}, same.config).has_value());
}

TEST_CASE("another micro-batch is said to change the fingerprint, and the losses agree to rounding") {
  TinyRun whole;
  whole.run();
  TinyRun changed;
  changed.run({}, 6);
  changed.run({"train.micro_batch=4"});
  const Metrics a = whole.metrics();
  const Metrics b = changed.metrics();
  CHECK(b.restarts.at(0).fingerprint_changed);
  REQUIRE(b.steps.size() == 12);
  for (std::size_t i = 0; i < 12; ++i) CHECK(b.steps[i].loss == Near(a.steps[i].loss).epsilon(1e-5));
  CHECK(contains(TempFolder::read(changed.paths.folder / "logs" / "rank-00000.log"), "losses agree to rounding"));
}

TEST_CASE("a damaged newest checkpoint is quarantined and the older one gives the same numbers") {
  TinyRun whole;
  whole.run();
  TinyRun run;
  run.run({}, 11);
  const auto newest = run.checkpoint(11) / "model-00000.safetensors";
  REQUIRE(std::filesystem::exists(newest));
  {
    std::fstream file(newest, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-5, std::ios::end);
    file.put('\x55');
  }
  const StartPoint start = run.prepare(run.config());
  CHECK(start.step == 10);
  CHECK(run.noticed("quarantined"));
  CHECK(run.train(start) == ExitCode::finished);
  check_same_numbers(whole.metrics(), run.metrics());
}

TEST_CASE("frozen parameters of a run in bf16 are stored in it, and a resume has them to the bit") {
  const std::vector<std::string> settings = {"precision.compute=bf16", "finetune.freeze=[blocks.*]"};
  TinyRun whole;
  whole.overrides_always = settings;
  CHECK(whole.run() == ExitCode::finished);
  TinyRun parts;
  parts.overrides_always = settings;
  CHECK(parts.run({}, 4) == ExitCode::interrupted);
  CHECK(parts.run() == ExitCode::finished);
  check_same_numbers(whole.metrics(), parts.metrics());
  CHECK(tensors_of(whole.checkpoint(12)) == tensors_of(parts.checkpoint(12)));
  const Checkpoint checkpoint(whole.checkpoint(12));
  for (const ManifestTensor& tensor : checkpoint.manifest().tensors) {
    CAPTURE(tensor.name);
    CHECK(tensor.dtype == (tensor.role == "frozen" ? DType::bf16 : DType::f32));
    CHECK((tensor.role == "frozen") == tensor.name.starts_with("blocks."));
  }
  // In another precision what is frozen is as it was stored.
  TinyRun wider;
  wider.overrides_always = settings;
  CHECK(wider.run({}, 4) == ExitCode::interrupted);
  CHECK(wider.run({"precision.compute=fp32"}) == ExitCode::finished);
  const Checkpoint widened(wider.checkpoint(12));
  const ManifestTensor* const map = widened.manifest().find("blocks.0.ffn.up.weight");
  REQUIRE(map != nullptr);
  CHECK(map->dtype == DType::f32);
  std::vector<float> after(static_cast<std::size_t>(map->shape.num_elements()));
  std::vector<float> before(after.size());
  const Box all{{0, 0}, {map->shape[0], map->shape[1]}};
  widened.read(map->name, all, View(after.data(), DType::f32, map->shape));
  checkpoint.read(map->name, all, View(before.data(), DType::f32, map->shape));
  CHECK(after == before);
}
