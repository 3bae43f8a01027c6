// The run folder: one run at a time, what --resume allows, leftovers of crashes, disks that are full or read-only.
#include <doctest/doctest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "support/own_mounts.h"
#include "tiny_run.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

constexpr double folder_patience = 60.0;

fs::path run_until(const std::string& name, int last) {
  fs::path run = copy_run(undisturbed_run(), name);
  for (int step = last + 20; step <= tiny_steps; step += 20) fs::remove_all(checkpoint(run, step));
  return run;
}

void check_same_numbers(const fs::path& run) {
  CHECK(trajectory_of(run).steps == trajectory_of(undisturbed_run()).steps);
}

TEST_CASE("a_second_run_on_the_same_folder_leaves_soon_names_the_first_and_writes_nothing") {
  const fs::path run = workspace() / "busy";
  Program first(workspace().launch(workspace().training("busy", {"train.steps=100000", "checkpoint.every=1000000"})));
  REQUIRE(wait_until([&] { return newest_step(run) >= 10; }, folder_patience));
  // Held still, so that whatever changes from here on was written by the second.
  const auto workers = children_of(first.pid());
  REQUIRE(workers.size() == 1);
  first.signal(SIGSTOP);
  ::kill(workers.front(), SIGSTOP);
  const auto before = snapshot(run);
  const Ended second = workspace().run(workspace().training("busy"), folder_patience);
  CHECK_MESSAGE(second.exit_code == 2, second.errors);
  CHECK(second.seconds < 20.0);
  CHECK(second.says("process " + std::to_string(first.pid())));
  CHECK(second.says(run.string()));
  CHECK(snapshot(run) == before);
  ::kill(workers.front(), SIGCONT);
  first.signal(SIGCONT);
  first.signal(SIGTERM);
  const Ended end = first.wait(folder_patience);
  CHECK_MESSAGE(end.exit_code == 75, end.errors);
}

TEST_CASE("a_finished_run_started_again_says_so_and_changes_nothing") {
  const fs::path run = copy_run(undisturbed_run(), "finished");
  const auto before = snapshot(run);
  const Ended end = workspace().run(workspace().training(
      "finished", {"checkpoint.keep=7", "precision.compute=bf16", "train.optimizer.learning_rate=0.5"}));
  CHECK(end.exit_code == 0);
  CHECK_MESSAGE(end.errors.starts_with("already complete: "), end.errors);
  CHECK_MESSAGE(std::count(end.errors.begin(), end.errors.end(), '\n') == 1, end.errors);
  CHECK(snapshot(run) == before);
}

TEST_CASE("leftovers_of_a_crash_neither_disturb_nor_stay") {
  const fs::path run = run_until("leftovers", 120);
  const fs::path checkpoints = run / "checkpoints";
  // A save that died before its commit, a pruning that died, a line that was cut, the lock of a process that is gone.
  fs::copy(checkpoint(run, 100), checkpoints / ".saving-step-00000140-0123456789abcdef", fs::copy_options::recursive);
  fs::remove(checkpoints / ".saving-step-00000140-0123456789abcdef" / "manifest.json");
  fs::copy(checkpoint(run, 20), checkpoints / ".removing-step-00000005-1", fs::copy_options::recursive);
  std::string metrics = read_file(run / "metrics.jsonl");
  write_file(run / "metrics.jsonl", metrics + "{\"kind\":\"step\",\"step\":20");
  const Ended end = workspace().run(workspace().training("leftovers"));
  CHECK_MESSAGE(end.exit_code == 0, end.errors);
  CHECK(end.says("resuming from " + checkpoint(run, 120).string()));
  check_same_numbers(run);
  CHECK(hidden_names(run, ".").empty());
}

TEST_CASE("an_empty_folder_by_a_checkpoints_name_is_not_a_checkpoint") {
  const fs::path run = run_until("empty-checkpoint", 120);
  fs::create_directories(checkpoint(run, 140));
  const Ended end = workspace().run(workspace().training("empty-checkpoint"));
  CHECK_MESSAGE(end.exit_code == 0, end.errors);
  CHECK(end.says("step-00000140"));
  check_same_numbers(run);
}

TEST_CASE("a_job_that_began_with_resume_never_goes_on_when_it_is_put_back_into_the_queue") {
  auto arguments = workspace().training("began-with-never");
  arguments.insert(arguments.end(), {"--resume", "never"});
  const auto launch = [&](const std::string& restarts) {
    Launch start = workspace().launch(arguments);
    start.environment.insert(start.environment.begin(), {{"SLURM_JOB_ID", "4711"}, {"SLURM_RESTART_COUNT", restarts}});
    return start;
  };
  Program first(launch("0"));
  REQUIRE(wait_until([&] { return newest_step(workspace() / "began-with-never") >= 20 || !first.running(); },
                     folder_patience));
  first.signal(SIGTERM);
  const Ended end = first.wait();
  CHECK_MESSAGE(end.exit_code == 75, end.errors);
  CHECK(end.says("start again with --resume auto to go on"));
  CHECK(run_program(launch("0")).exit_code == 2);
  CHECK(workspace().run(arguments).says("--resume auto"));
  const Ended second = run_program(launch("1"));
  CHECK_MESSAGE(second.exit_code == 0, second.errors);
  CHECK(second.says("job 4711"));
  check_same_numbers(workspace() / "began-with-never");
}

TEST_CASE("resume_never_refuses_a_folder_with_checkpoints_and_required_one_without") {
  const fs::path run = run_until("modes", 120);
  const auto before = snapshot(run / "checkpoints");
  auto arguments = workspace().training("modes");
  arguments.insert(arguments.end(), {"--resume", "never"});
  const Ended never = workspace().run(arguments);
  CHECK_MESSAGE(never.exit_code == 2, never.errors);
  CHECK(never.says("--resume never"));
  CHECK(never.says("6 checkpoints"));
  CHECK(snapshot(run / "checkpoints") == before);

  arguments = workspace().training("modes-empty");
  arguments.insert(arguments.end(), {"--resume", "required"});
  const Ended required = workspace().run(arguments);
  CHECK_MESSAGE(required.exit_code == 3, required.errors);
  CHECK(required.says("--resume required"));
  CHECK_FALSE(fs::exists(workspace() / "modes-empty"));

  arguments = workspace().training("modes");
  arguments.insert(arguments.end(), {"--resume", "required"});
  CHECK(workspace().run(arguments).exit_code == 0);
  check_same_numbers(run);

  arguments = workspace().training("modes");
  arguments.insert(arguments.end(), {"--resume", "sometimes"});
  const Ended unknown = workspace().run(arguments);
  CHECK(unknown.exit_code == 2);
  CHECK(unknown.says("sometimes"));
}

TEST_CASE("resuming_an_older_checkpoint_quarantines_the_later_ones_and_repeats_the_same_numbers") {
  const fs::path run = run_until("older", 120);
  auto arguments = workspace().training("older");
  arguments.insert(arguments.end(), {"--resume", checkpoint(run, 60).string()});
  const Ended end = workspace().run(arguments);
  CHECK_MESSAGE(end.exit_code == 0, end.errors);
  CHECK(end.says("resuming from " + checkpoint(run, 60).string()));
  CHECK(hidden_names(run, ".abandoned-step-00000120").size() == 1);
  check_same_numbers(run);
  CHECK(open_manifest(checkpoint(run, 60)).at("generation") == 0);
  CHECK(open_manifest(checkpoint(run, 200)).at("generation") == 1);
}

TEST_CASE("a_new_run_continues_from_another_runs_checkpoint") {
  auto arguments = workspace().training("branch");
  arguments.insert(arguments.end(), {"--resume", checkpoint(undisturbed_run(), 160).string()});
  const Ended end = workspace().run(arguments);
  CHECK_MESSAGE(end.exit_code == 0, end.errors);
  const Trajectory expected = trajectory_of(undisturbed_run());
  const Trajectory found = trajectory_of(workspace() / "branch");
  REQUIRE(found.steps.size() == 40);
  for (const auto& [step, numbers] : found.steps) CHECK(expected.steps.at(step) == numbers);
}

TEST_CASE("a_run_from_anothers_checkpoint_that_is_interrupted_says_to_go_on_from_there") {
  auto arguments = workspace().training("branch-interrupted", {"checkpoint.every=100000", "train.steps=100000"});
  const std::string from = checkpoint(undisturbed_run(), 160).string();
  arguments.insert(arguments.end(), {"--resume", from});
  Program agent(workspace().launch(arguments));
  REQUIRE(wait_until([&] { return newest_step(workspace() / "branch-interrupted") > 160; }, folder_patience));
  agent.signal(SIGTERM);
  const Ended end = agent.wait(folder_patience);
  CHECK_MESSAGE(end.exit_code == 75, end.errors);
  CHECK_MESSAGE(end.says(" --resume " + from), end.errors);
}

TEST_CASE("what_a_resume_must_not_change_is_refused_by_key") {
  run_until("changed", 120);
  const Ended end =
      workspace().run(workspace().training("changed", {"model.hidden=64", "run.seed=5", "train.steps=150"}));
  CHECK_MESSAGE(end.exit_code == 2, end.errors);
  CHECK(end.says("model.hidden: 32 in the checkpoint, 64 now"));
  CHECK(end.says("run.seed: 1234 in the checkpoint, 5 now"));
  CHECK(end.says("notice: this resume changes train.steps"));
}

TEST_CASE("check_judges_epoch_caps_by_what_a_resume_has_left_to_do_as_run_does") {
  run_until("capped", 200);
  // 60 samples of 32 tokens, for what comes behind 800 of train.txt.
  workspace().write("few.txt", read_file(workspace() / "train.txt").substr(100, 1920));
  const auto settings = [](const std::string& steps) {
    return std::vector<std::string>{"data.train=[{path: few.txt, epochs: 1}]", "train.steps=" + steps};
  };
  const auto ends = [&](const std::string& command, const std::string& steps) {
    std::vector<std::string> arguments = workspace().training("capped", settings(steps));
    arguments.front() = command;
    return workspace().run(arguments);
  };
  const Ended fits = ends("check", "210");
  CHECK_MESSAGE(fits.exit_code == 0, fits.errors);
  CHECK_FALSE(fits.says("epoch caps"));
  CHECK_MESSAGE(fits.output.find("data          from step 200 on about 0.667 epochs of") != std::string::npos,
                fits.output);
  for (const char* command : {"check", "run"}) {
    const Ended short_of = ends(command, "240");
    CHECK_MESSAGE(short_of.exit_code == 2, short_of.errors);
    CHECK(short_of.says("160 samples"));
  }
  const Ended run = ends("run", "210");
  CHECK_MESSAGE(run.exit_code == 0, run.errors);
  const Ended close = ends("check", "218");  // 20 are left, unless the file has been replaced
  CHECK_MESSAGE(close.exit_code == 0, close.errors);
  CHECK(
      close.says("notice: --set data.train=[{path: few.txt, epochs: 1}]: data.train.0.epochs: the run's 8 steps from "
                 "step 210 on need 32 samples, and the epoch caps of data.train leave about 20"));
}

TEST_CASE("a_run_whose_checkpoints_are_gone_is_not_begun_again") {
  const fs::path run = run_until("lost", 120);
  fs::remove_all(run / "checkpoints");
  const std::string metrics = read_file(run / "metrics.jsonl");
  const Ended end = workspace().run(workspace().training("lost"));
  CHECK_MESSAGE(end.exit_code == 3, end.errors);
  CHECK(end.says((run / "checkpoints").string()));
  CHECK(end.says("run.directory"));
  CHECK(read_file(run / "metrics.jsonl") == metrics);
}

TEST_CASE("a_foreign_folder_is_refused_and_stays_untouched") {
  const fs::path run = workspace() / "foreign";
  fs::create_directories(run);
  write_file(run / "thesis.tex", "years of work");
  const auto before = snapshot(run);
  const Ended end = workspace().run(workspace().training("foreign"));
  CHECK_MESSAGE(end.exit_code == 2, end.errors);
  CHECK(end.says("thesis.tex"));
  CHECK(end.says("run.directory"));
  CHECK(snapshot(run) == before);
  const Ended file = workspace().run(workspace().training("held.txt"));
  CHECK_MESSAGE(file.exit_code == 2, file.errors);
  CHECK(file.says("run.directory"));
  const Ended below = workspace().run(workspace().training("held.txt/below"));
  CHECK_MESSAGE(below.exit_code == 2, below.errors);
  CHECK(below.says("--set run.directory="));
  CHECK(below.says("Not a directory; choose another folder"));
}

TEST_CASE("a_read_only_run_folder_is_refused_before_the_first_step") {
  const fs::path run = workspace() / "read-only";
  fs::create_directories(run);
  if (!mount_memory(run, MS_RDONLY, "size=4m")) {
    MESSAGE("skipped: a_read_only_run_folder_is_refused_before_the_first_step needs the right to mount");
    return;
  }
  const Ended end = workspace().run(workspace().training("read-only"));
  CHECK_MESSAGE(end.exit_code == 3, end.errors);
  CHECK(end.says(run.string()));
  CHECK_FALSE(end.says("step 1/"));
  ::umount(run.c_str());
}

TEST_CASE("a_full_disk_fails_the_save_loudly_and_training_goes_on") {
  const fs::path run = workspace() / "full-disk";
  const fs::path checkpoints = run / "checkpoints";
  fs::create_directories(checkpoints);
  // Two checkpoints of 0.45 MiB fit, three do not: both stay.
  if (!mount_memory(checkpoints, 0, "size=1200k")) {
    MESSAGE("skipped: a_full_disk_fails_the_save_loudly_and_training_goes_on needs the right to mount");
    return;
  }
  const Ended end = workspace().run(workspace().training("full-disk"));
  INFO(end.errors);
  CHECK(end.exit_code == 3);  // the last state could not be kept
  CHECK(end.says("10 of "));  // told before the first step
  CHECK(end.says("No space left on device"));
  CHECK(end.says("saves in a row have failed; what was trained since the checkpoint of step 40 would be lost"));
  CHECK(trajectory_of(run).last_step() == tiny_steps);
  check_same_numbers(run);
  CHECK(read_file(run / "metrics.jsonl").find("\"failure\":") != std::string::npos);
  CHECK(hidden_names(run, ".").empty());
  const std::vector<std::string> names = checkpoint_names(run);
  REQUIRE(names == std::vector<std::string>{"step-00000020", "step-00000040"});
  for (const std::string& name : names)
    CHECK(workspace().run({"checkpoint", "verify", (checkpoints / name).string()}).exit_code == 0);
  // With room again, the run completes from the newest that was saved.
  REQUIRE(::mount("none", checkpoints.c_str(), "tmpfs", MS_REMOUNT, "size=32m") == 0);
  const Ended again = workspace().run(workspace().training("full-disk"));
  CHECK_MESSAGE(again.exit_code == 0, again.errors);
  CHECK(again.says("resuming from " + (checkpoints / names.back()).string()));
  check_same_numbers(run);
  ::umount(checkpoints.c_str());
}

TEST_CASE("a_full_disk_costs_the_oldest_checkpoints_before_it_costs_a_save") {
  const fs::path run = workspace() / "short-disk";
  const fs::path checkpoints = run / "checkpoints";
  fs::create_directories(checkpoints);
  // Three checkpoints of 0.45 MiB fit, four do not.
  if (!mount_memory(checkpoints, 0, "size=1700k")) {
    MESSAGE("skipped: a_full_disk_costs_the_oldest_checkpoints_before_it_costs_a_save needs the right to mount");
    return;
  }
  const Ended end = workspace().run(workspace().training("short-disk"));
  INFO(end.errors);
  CHECK(end.exit_code == 0);
  CHECK(end.says("step-00000020 was removed to make some"));
  check_same_numbers(run);
  CHECK(read_file(run / "metrics.jsonl").find("\"failure\":") == std::string::npos);
  CHECK(checkpoint_names(run) == std::vector<std::string>{"step-00000160", "step-00000180", "step-00000200"});
  for (const std::string& name : checkpoint_names(run))
    CHECK(workspace().run({"checkpoint", "verify", (checkpoints / name).string()}).exit_code == 0);
  CHECK(hidden_names(run, ".").empty());
  ::umount(checkpoints.c_str());
}

TEST_CASE("a_disk_on_which_not_even_one_checkpoint_fits_is_refused_before_the_first_step") {
  const fs::path run = workspace() / "no-room";
  const fs::path checkpoints = run / "checkpoints";
  fs::create_directories(checkpoints);
  if (!mount_memory(checkpoints, 0, "size=1200k")) {
    MESSAGE("skipped: a_disk_on_which_not_even_one_checkpoint_fits_is_refused needs the right to mount");
    return;
  }
  // Somebody else's data, so that 0.2 MiB are left.
  write_file(checkpoints / "other.bin", std::string(1'000'000, 'x'));
  std::vector<std::string> look = workspace().training("no-room");
  look.front() = "check";
  const Ended looked = workspace().run(look);
  CHECK(looked.exit_code == 3);
  CHECK_MESSAGE(looked.says("Not even one fits"), looked.errors);
  const Ended end = workspace().run(workspace().training("no-room"));
  INFO(end.errors);
  CHECK(end.exit_code == 3);
  CHECK(end.says("Not even one more fits"));
  CHECK(end.says(checkpoints.string()));
  CHECK(trajectory_of(run).last_step() == 0);
  fs::remove(checkpoints / "other.bin");
  // What a dead process has left of a save is no reason to refuse.
  fs::create_directories(checkpoints / ".saving-step-00000020-0123");
  write_file(checkpoints / ".saving-step-00000020-0123" / "model-00000.safetensors", std::string(1'000'000, 'x'));
  const Ended again = workspace().run(workspace().training("no-room", {"train.steps=40"}));
  CHECK_MESSAGE(again.exit_code == 0, again.errors);
  // A run that has something to go on from does so: the shortage may pass.
  REQUIRE(checkpoint_names(run) == std::vector<std::string>{"step-00000020", "step-00000040"});
  const Ended on = workspace().run(workspace().training("no-room", {"train.steps=60"}));
  INFO(on.errors);
  CHECK(on.exit_code == 3);
  CHECK(on.says("Not even one more fits"));
  CHECK(trajectory_of(run).last_step() == 60);
  CHECK(checkpoint_names(run) == std::vector<std::string>{"step-00000020", "step-00000040"});
  ::umount(checkpoints.c_str());
}

}  // namespace
}  // namespace scaletrain
