#include "train/start/run_folder.h"

#include <sys/stat.h>

#include "base/file.h"
#include "config/keys/keys.h"
#include "host/run_lock.h"
#include "support/refused_files.h"
#include "unit/train/train_helpers.h"

using namespace scaletrain;
namespace fs = std::filesystem;

TEST_CASE("a new run folder is made with its parts, for whom the umask says") {
  const TempFolder folder;
  const RunPaths paths(folder / "a/b/run");
  open_run_folder(paths);
  CHECK(fs::is_directory(paths.logs()));
  CHECK(fs::is_directory(paths.checkpoints()));
  for (const mode_t mask : {mode_t(0), mode_t(022), mode_t(077)}) {
    const mode_t before = ::umask(mask);
    const RunPaths masked(folder / std::to_string(mask));
    open_run_folder(masked);
    ::umask(before);
    struct stat status {};
    REQUIRE(::stat(masked.folder.c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == (0777 & ~mask));
  }
  open_run_folder(paths);  // again: it is a run's
}

TEST_CASE("a folder or file that is no run's is refused and stays as it is") {
  const TempFolder folder;
  folder.write("thesis/chapter1.tex", "years of work");
  folder.write("thesis/logs/x", "");
  const RunPaths paths(folder / "thesis");
  const std::string text = message_of<UserError>([&] { open_run_folder(paths); });
  CHECK(contains(text, "run.directory"));
  CHECK(contains(text, "chapter1.tex"));
  CHECK_FALSE(fs::exists(paths.checkpoints()));
  folder.write("file", "x");
  CHECK(contains(message_of<UserError>([&] { open_run_folder(RunPaths(folder / "file")); }), "no folder"));
  const std::string below = message_of<UserError>([&] { open_run_folder(RunPaths(folder / "file/below")); });
  CHECK(below.starts_with("run.directory: " + (folder / "file").string()));
  CHECK(contains(below, "Not a directory; choose another folder"));
}

TEST_CASE("a run's own folder may hold anything besides") {
  TinyRun run;
  run.run({}, 1);
  run.folder.write("run/notes.txt", "the second try");
  run.folder.write("run/slurm-1.out", "");
  open_run_folder(run.paths);
  std::filesystem::remove_all(run.paths.checkpoints());
  open_run_folder(run.paths);
  CHECK(TempFolder::read(run.paths.folder / "notes.txt") == "the second try");
  // A config alone is a user's.
  run.folder.write("project/config.yaml", "");
  run.folder.write("project/notes.txt", "");
  CHECK(contains(message_of<UserError>([&] { open_run_folder(RunPaths(run.folder / "project")); }), "notes.txt"));
}

TEST_CASE("a folder with the run's lock, or with what it leaves behind, is still a run folder") {
  const TempFolder folder;
  const RunPaths paths(folder.path());
  {
    const RunLock lock = RunLock::acquire(paths.lock(), {});
    CHECK_NOTHROW(open_run_folder(paths));
  }
  CHECK_NOTHROW(open_run_folder(paths));
}

TEST_CASE("lost checkpoints that the metrics know of end the start instead of beginning again") {
  TinyRun run;
  run.run({}, 7);
  for (const bool with_folder : {true, false}) {
    CAPTURE(with_folder);
    fs::remove_all(run.paths.checkpoints());
    if (with_folder) fs::create_directory(run.paths.checkpoints());
    const std::string config = TempFolder::read(run.paths.config());
    const std::string text = message_of<InputError>([&] { run.prepare(run.config({"train.micro_batch=1"})); });
    CHECK(contains(text, run.paths.checkpoints().string()));
    CHECK(contains(text, "step 7 was saved"));
    CHECK(contains(text, "another run.directory"));
    CHECK(TempFolder::read(run.paths.config()) == config);
    CHECK_FALSE(message_of<InputError>([&] { restart_point(run.paths, {}, [](const std::string&) {}); }).empty());
  }
}

TEST_CASE("metrics without a checkpoint that was saved are no obstacle to begin again") {
  TinyRun run;
  run.hooks.entered = [](std::int64_t step, bool) {
    if (step == 3) throw PeerError("killed");
  };
  CHECK_THROWS_AS(run.run(), PeerError);
  std::ofstream(run.paths.metrics(), std::ios::app)
      << R"({"kind":"checkpoint","step":3,"path":"","seconds":0,"bytes":0,"failure":"disk full"})"
      << "\n";
  REQUIRE(run.metrics().checkpoints.size() == 1);
  CHECK_FALSE(run.prepare(run.config()).checkpoint);
}

TEST_CASE("a start of a complete run changes nothing") {
  TinyRun run;
  run.run();
  const std::string config = TempFolder::read(run.paths.config());
  const LoadedConfig shorter = run.config({"train.steps=5"});
  const StartPoint start = run.prepare(shorter, run.checkpoint(5).string());
  CHECK(already_complete(start, shorter.config).has_value());
  CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{12, 10, 5});
  CHECK(TempFolder::read(run.paths.config()) == config);
}

TEST_CASE("required makes no folder") {
  TinyRun run;
  const ResumeRequest required = parse_resume("required", run.paths);
  CHECK(contains(message_of<InputError>([&] { open_run_folder(run.paths, required); }), "--resume required"));
  CHECK_FALSE(fs::exists(run.paths.folder));
}

TEST_CASE("what a scheduler or an earlier run put there is no obstacle") {
  const TempFolder folder;
  folder.write("run/logs/agent-00.log", "x");
  folder.write("run/lock.json", "{}");
  folder.write("run/metrics.jsonl", "");
  open_run_folder(RunPaths(folder / "run"));
}

TEST_CASE("the configs are written, the resolved one reads back") {
  TinyRun run;
  const LoadedConfig loaded = run.config({"train.steps=7"});
  const StartPoint start = run.prepare(loaded);
  CHECK_FALSE(start.checkpoint);
  CHECK(start.step == 0);
  CHECK(start.generation == 0);
  CHECK(TempFolder::read(run.paths.source_config()) == loaded.source);
  const Config back = parse_resolved_config(TempFolder::read(run.paths.config()), "config.yaml");
  CHECK(back.train.steps == 7);
  CHECK(compare_configs(back, loaded.config).empty());
  open_run_folder(run.paths);  // nothing of it is foreign
}

TEST_CASE("--resume takes its words and checkpoint folders, nothing else") {
  const TempFolder folder;
  const RunPaths paths(folder / "run");
  CHECK(parse_resume("auto", paths).mode == ResumeRequest::Mode::automatic);
  CHECK(parse_resume("never", paths).mode == ResumeRequest::Mode::never);
  CHECK(parse_resume("required", paths).mode == ResumeRequest::Mode::required);
  folder.write("step-00000005/manifest.json", "{}");
  for (const std::string spelled :
       {"step-00000005", "step-00000005/", "./step-00000005", "step-00000005/../step-00000005/."}) {
    const ResumeRequest request = parse_resume((folder / spelled).string(), paths);
    CHECK(request.mode == ResumeRequest::Mode::from_checkpoint);
    CHECK(request.checkpoint == folder / "step-00000005");
  }
  for (const std::string wrong : {"Auto", "", "latest", "/nowhere"}) {
    const std::string text = message_of<UserError>([&] { parse_resume(wrong, paths); });
    CHECK(contains(text, "--resume " + wrong));
    CHECK(contains(text, "auto, never, required"));
  }
}

TEST_CASE("--resume with the folder of a run or of checkpoints names the checkpoint to give") {
  TinyRun run;
  run.run({}, 1);
  const RunPaths other(run.folder / "other");
  for (const fs::path& given : {run.paths.folder, run.paths.checkpoints()}) {
    const std::string text = message_of<UserError>([&] { parse_resume(given.string(), other); });
    CHECK(contains(text, "--resume " + given.string() + ": "));
    CHECK(contains(text, "give one of them: " + run.checkpoint(1).string() + " is the newest"));
  }
  fs::remove(run.checkpoint(1) / "manifest.json");
  CHECK(contains(message_of<UserError>([&] { parse_resume(run.paths.folder.string(), other); }),
                 "the folder of a run that has no usable checkpoint"));
  // What is no folder is still told by what was expected.
  CHECK(contains(message_of<UserError>([&] { parse_resume(run.paths.metrics().string(), other); }), "expected auto"));
}

TEST_CASE("required needs a checkpoint, never forbids one, auto takes the newest") {
  TinyRun run;
  CHECK(contains(message_of<InputError>([&] { run.prepare(run.config(), "required"); }), "--resume required"));
  CHECK_FALSE(fs::exists(run.paths.config()));  // refused before anything is written
  CHECK_FALSE(run.prepare(run.config(), "never").checkpoint);
  run.run({}, 2);
  const std::string text = message_of<UserError>([&] { run.prepare(run.config(), "never"); });
  CHECK(contains(text, "--resume never"));
  CHECK(contains(text, "1 checkpoint"));
  CHECK(run.prepare(run.config(), "required").step == 2);
  const StartPoint start = run.prepare(run.config());
  CHECK(start.step == 2);
  CHECK(start.generation == 1);
}

TEST_CASE("a job that began a run with never goes on with it when it is started again") {
  TinyRun run;
  const auto prepare = [&](const std::string& job, std::int64_t restarts) {
    ResumeRequest request = parse_resume("never", run.paths);
    request.job = {job, restarts};
    open_run_folder(run.paths, request);
    return prepare_run_folder(run.paths, run.config(), request, {[](const std::string&) {}});
  };
  const auto refused = [&](const std::string& job, std::int64_t restarts) {
    return contains(message_of<UserError>([&] { prepare(job, restarts); }), "--resume auto");
  };
  CHECK(run.train(prepare("41", 1), 2) == ExitCode::interrupted);
  // A second command of the same start, as in an interactive allocation, is a new run that is meant.
  CHECK(refused("41", 1));
  CHECK(refused("41", 0));
  CHECK(refused("42", 2));
  CHECK(refused("", 2));
  const StartPoint second = prepare("41", 2);
  CHECK(second.step == 2);
  CHECK(second.generation == 1);
  CHECK(run.train(second, 2) == ExitCode::interrupted);
  CHECK(prepare("41", 3).step == 4);

  fs::remove_all(run.paths.checkpoints());
  CHECK_FALSE(prepare("", 0).checkpoint);  // begun anew by hand: no job's any more
  run.train(prepare("", 0), 2);
  CHECK(refused("41", 4));
}

TEST_CASE("keys that a resume must not change are refused together, and nothing is written") {
  TinyRun run;
  run.run({}, 1);
  const std::string before = TempFolder::read(run.paths.config());
  const LoadedConfig changed = run.config({"run.seed=8", "model.ffn_hidden=32", "model.activation=gelu_tanh",
                                           "train.micro_batch=1", "train.optimizer.learning_rate=2e-2"});
  run.notices.clear();
  const std::string text = message_of<UserError>([&] { run.prepare(changed); });
  CHECK(contains(text, "run.seed: 7 in the checkpoint, 8 now"));
  CHECK(contains(text, "model.ffn_hidden: 24 in the checkpoint, 32 now"));
  CHECK(contains(text, "model.activation"));
  CHECK_FALSE(contains(text, "micro_batch"));
  CHECK_FALSE(contains(text, "learning_rate"));
  CHECK(TempFolder::read(run.paths.config()) == before);
}

TEST_CASE("keys that change with a notice are noticed, free ones are not") {
  TinyRun run;
  run.run({}, 1);
  run.notices.clear();
  run.prepare(run.config({"train.micro_batch=1", "train.optimizer.learning_rate=2e-2", "checkpoint.keep=4"}));
  CHECK(run.noticed("train.optimizer.learning_rate: "));
  CHECK(run.notices.size() == 1);
  CHECK(parse_resolved_config(TempFolder::read(run.paths.config()), "c").train.micro_batch == 1);
}

TEST_CASE("checkpoints of a program that knew no GPUs were computed on processors") {
  TinyRun run;
  run.run({"run.device=auto"}, 1);
  run.notices.clear();
  run.prepare(run.config({"run.device=cpu"}));
  CHECK_FALSE(run.noticed("run.device"));
  run.prepare(run.config({"run.device=cuda"}));
  CHECK(run.noticed("this resume changes run.device: cpu in the checkpoint, cuda now"));
}

TEST_CASE("a default warm-up stays what the run began with, one that is given does not") {
  TinyRun run;
  run.overrides_always = {"train.lr_schedule.warmup=auto"};
  run.run({"train.steps=40"}, 6);  // 2 steps by default
  const LoadedConfig longer = run.config({"train.steps=80"});
  CHECK(run.prepare(longer).step == 6);
  CHECK(run.noticed("train.lr_schedule.warmup stays 2 as this run began, though the default is 4 now"));
  const auto written = [&run] { return parse_resolved_config(TempFolder::read(run.paths.config()), "config.yaml"); };
  CHECK_FALSE(written().train.lr_schedule.warmup.has_value());
  CHECK(written().train.steps == 80);
  // Again, from a checkpoint that was written under the longer config.
  run.run({"train.steps=80"}, 2);
  run.notices.clear();
  run.run({"train.steps=400"}, 2);
  CHECK(run.noticed("train.lr_schedule.warmup stays 2 as this run began, though the default is 20 now"));
  const double peak = 1e-2;
  for (const StepRecord& step : run.metrics().steps)
    if (step.step > 1) CHECK(step.learning_rate > 0.9 * peak);
  run.notices.clear();
  run.prepare(run.config({"train.steps=400", "train.lr_schedule.warmup=4"}));
  CHECK(run.noticed("this resume changes train.lr_schedule.warmup: auto in the checkpoint, 4 now"));
  CHECK(written().train.lr_schedule.warmup == 4);
}

TEST_CASE("of a warm-up nothing is said where nothing is left to do") {
  TinyRun run;
  run.overrides_always = {"train.lr_schedule.warmup=auto"};
  run.run({"train.steps=40"}, 6);  // 2 steps by default
  run.prepare(run.config({"train.steps=6"}));
  CHECK_FALSE(run.noticed("train.lr_schedule.warmup stays"));
}

TEST_CASE("where nothing is left to do nothing is said of what a resume would change") {
  TinyRun run;
  run.run({"train.steps=7"}, 7);
  const std::vector<std::string> changed = {"train.steps=7", "train.optimizer.learning_rate=2e-2",
                                            "precision.compute=bf16"};
  run.notices.clear();
  const StartPoint start = run.prepare(run.config(changed));
  CHECK(already_complete(start, run.config(changed).config));
  CHECK(run.notices.empty());
  // One step more, and it matters.
  run.prepare(run.config({"train.steps=8", changed[1], changed[2]}));
  for (const char* key : {"train.steps", "train.optimizer.learning_rate", "precision.compute"})
    CHECK(run.noticed(std::string("this resume changes ") + key + ": "));
  // What must not change is refused all the same.
  CHECK(contains(message_of<UserError>([&] { run.prepare(run.config({"train.steps=7", "run.seed=8"})); }), "run.seed"));
}

TEST_CASE("who was interrupted is told what is saved, where, and how to go on") {
  TinyRun run;
  CHECK(saved_text(run.paths, {}, "scaletrain run c.yaml") ==
        "no checkpoint was written; to begin anew: scaletrain run c.yaml");
  run.run({}, 3);
  CHECK(saved_text(run.paths, {}, "scaletrain run c.yaml") ==
        "step 3 is saved in " + run.checkpoint(3).string() + "; to go on: scaletrain run c.yaml");
}

TEST_CASE("who was interrupted before the first save of a branch is not told of another branch's checkpoint") {
  TinyRun run;
  run.run({}, 7);
  REQUIRE(run.checkpoint_steps() == std::vector<std::int64_t>{7, 5});
  StartPoint start = run.prepare(run.config(), run.checkpoint(5).string());
  const fs::path abandoned = run.paths.checkpoints() / ".abandoned-step-00000007-0";
  REQUIRE(fs::exists(abandoned));
  // Back to the branch that was left: what lies there, of step 5, is not what the same command goes on from.
  start = run.prepare(run.config(), abandoned.string());
  REQUIRE(start.step == 7);
  CHECK(saved_text(run.paths, start, "CMD") ==
        "no checkpoint was written since " + abandoned.string() + " (step 7); to begin there again: CMD");
  REQUIRE(run.train(start, 2) == ExitCode::interrupted);
  CHECK(saved_text(run.paths, start, "CMD") == "step 9 is saved in " + run.checkpoint(9).string() + "; to go on: CMD");
}

TEST_CASE("what a start would refuse of the run folder is told without making anything") {
  const TempFolder folder;
  check_run_folder(RunPaths(folder / "a/b/run"));
  CHECK(fs::is_empty(folder.path()));
  folder.write("file", "x");
  folder.write("thesis/chapter1.tex", "years of work");
  folder.write("run/checkpoints", "x");
  folder.write("run/config.source.yaml", "");
  for (const char* name : {"file", "file/below", "thesis", "run"}) {
    CAPTURE(name);
    const std::string told = message_of<UserError>([&] { check_run_folder(RunPaths(folder / name)); });
    CHECK(told.starts_with("run.directory: "));
    CHECK(told == message_of<UserError>([&] { open_run_folder(RunPaths(folder / name)); }));
  }
}

TEST_CASE("that a folder's checkpoints are of another model is told without a change") {
  TinyRun run;
  const auto report = [](const std::string&) {};
  check_resume(run.paths, run.config({"model.layers=2"}), report);
  run.run({}, 6);
  check_resume(run.paths, run.config(), report);
  const LoadedConfig other = run.config({"model.layers=2"});
  const std::string told = message_of<UserError>([&] { check_resume(run.paths, other, report); });
  CHECK(contains(told, "\n  --set model.layers=2: model.layers: 1 in the checkpoint, 2 now\n"));
  CHECK(told == message_of<UserError>([&] { run.prepare(other); }));
  // A damaged one is the start's to find, which goes on with the one before.
  const fs::path newest = run.checkpoint(6);
  fs::resize_file(newest / "manifest.json", 20);
  CHECK(contains(message_of<UserError>([&] { check_resume(run.paths, other, report); }), "step-00000005"));
  REQUIRE(fs::exists(newest));
  fs::remove_all(newest);
  fs::remove_all(run.checkpoint(5));
  CHECK(contains(message_of<InputError>([&] { check_resume(run.paths, run.config(), report); }), "was saved; restore"));
}

TEST_CASE("another mix is told by what it means, and not as two lists of sources") {
  TinyRun run;
  run.run({}, 2);
  run.folder.write("b.txt", "other text");
  run.prepare(run.config({"data.train=[{path: b.txt}]"}));
  CHECK_FALSE(run.noticed("data.train"));
}

TEST_CASE("checkpoints of which none is usable end the start instead of beginning again") {
  TinyRun run;
  run.run({}, 1);
  fs::resize_file(run.checkpoint(1) / "manifest.json", 20);
  CHECK(contains(message_of<InputError>([&] { run.prepare(run.config()); }), "none is usable"));
}

TEST_CASE("a checkpoint that cannot be read now stops a start and a restart, and stays where it is") {
  TinyRun run;
  const StartPoint first = run.prepare(run.config());
  REQUIRE(run.train(first) == ExitCode::finished);
  const auto report = [](const std::string&) {};
  for (const char* file : {"manifest.json", "model-00000.safetensors"}) {
    CAPTURE(file);
    const fs::path refused = run.checkpoint(12) / file;
    const FileLease lease(refused);
    if (!lease) {
      MESSAGE("no leases on the file system of temporary files: not tested");
      return;
    }
    const StartPoint from_newest{run.paths.checkpoints() / "step-00000012", 12, 3, {}};
    const std::string messages[] = {
        message_of<FileAccessError>([&] { run.prepare(run.config()); }),
        message_of<FileAccessError>([&] { restart_point(run.paths, first, report); }),
        message_of<FileAccessError>([&] { restart_point(run.paths, from_newest, report); })};
    for (const std::string& message : messages) CHECK(contains(message, refused.string()));
  }
  CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{12, 10, 5});
  CHECK(restart_point(run.paths, first, report).step == 12);
}
