// Saves in the background whose storage fails or is slow, or whose process dies: as for those that training waits for.
// Only calls on the checkpoints are struck: the metrics and the log are written by training meanwhile.
#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <utility>

#include "storage.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

constexpr int struck = 3;  // the step whose save is struck, the last one in the background
constexpr int killed_exit = 4;

StorageFault background(const std::string& action, long at, const std::string& kinds = "") {
  return {.action = action,
          .at = at,
          .save = struck,
          .kinds = kinds,
          .below = "checkpoints",
          .settings = {"checkpoint.background=true"}};
}

std::string after_failure(const std::string& name, const StorageFault& fault, bool fails) {
  const fs::path run = run_of_step(name, struck - 1);
  const Ended end = go_on(name, fault);
  if (end.exit_code != 0) return "exit code " + std::to_string(end.exit_code) + "\n" + end.errors;
  if (has_failed_save(run, struck) != fails)
    return (fails ? "no failure in" : "a failure in") + std::string(" the metrics\n") + end.errors;
  const std::string log = read_file(run / "logs" / "rank-00000.log");
  if ((log.find("the checkpoint was not saved") != std::string::npos) != fails) return "the log is wrong:\n" + log;
  return problem_of(run, fails ? std::vector<int>{2, 4} : std::vector<int>{3, 4});
}

std::string after_kill(const std::string& name, const StorageFault& fault, bool is_committed) {
  const fs::path run = run_of_step(name, struck - 1);
  const Ended end = go_on(name, fault);
  if (end.exit_code != killed_exit) return "exit code " + std::to_string(end.exit_code) + "\n" + end.errors;
  const int newest = is_committed ? struck : struck - 1;
  const std::vector<std::string> names = checkpoint_names(run);
  if (names.empty() || names.back() != checkpoint(run, newest).filename()) return "not the newest checkpoint expected";
  for (const int step : {newest, newest - 1}) {
    if (!verifies(checkpoint(run, step))) return "step " + std::to_string(step) + " does not verify";
  }
  const Ended again = go_on(name, {.settings = fault.settings});
  if (again.exit_code != 0) return "the second start: " + again.errors;
  if (!again.says("resuming from " + checkpoint(run, newest).string()))
    return "not resumed as expected\n" + again.errors;
  if (!has_restart_from(run, newest)) return "no line of the restart in the metrics";
  return problem_of(run, {fault_steps - 1, fault_steps});
}

// The thread that writes makes all these calls, in the same order each time.
const std::vector<StorageCall>& calls() {
  static const std::vector<StorageCall> all = calls_of_save(background("", 0));
  return all;
}

nlohmann::json record_of_save(const fs::path& run, int step) {
  std::istringstream lines(read_file(run / "metrics.jsonl"));
  nlohmann::json found;
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json record = nlohmann::json::parse(line);
    if (record.at("kind") == "checkpoint" && record.at("step") == step) found = record;
  }
  return found;
}

TEST_CASE("a_kill_in_the_middle_of_a_save_in_the_background_leaves_the_old_checkpoint_or_the_new_one") {
  const long commit = commit_of(calls());
  std::vector<SweepCase> cases;
  for (const StorageCall& call : calls()) {
    if (call.kind == "close") continue;
    const StorageFault fault = background("kill-before", call.number);
    const bool is_committed = call.number > commit;
    cases.push_back({"kill before " + std::to_string(call.number) + " " + call.kind + " " + call.path,
                     [=](const std::string& name) { return after_kill(name, fault, is_committed); }});
  }
  CHECK(cases.size() > 15);
  for (const std::string& problem : sweep(cases)) FAIL_CHECK(problem);
}

TEST_CASE("storage_that_fails_a_save_in_the_background_fails_it_loudly_and_no_step") {
  const long commit = commit_of(calls());
  std::vector<SweepCase> cases;
  for (const StorageCall& call : calls()) {
    if (call.number > commit || call.kind == "close") continue;
    for (const std::string action : {"EIO", "ENOSPC"}) {
      if (action == "ENOSPC" && call.kind != "write" && call.kind != "sync" && call.kind != "mkdir") continue;
      const StorageFault fault = background(action, call.number);
      cases.push_back({action + " at " + std::to_string(call.number) + " " + call.kind + " " + call.path,
                       [=](const std::string& name) { return after_failure(name, fault, true); }});
    }
  }
  CHECK(cases.size() > 15);
  for (const std::string& problem : sweep(cases)) FAIL_CHECK(problem);
}

// The name is there, and only a power cut could take it away again.
TEST_CASE("a_folder_that_cannot_be_synced_after_the_commit_is_told_and_the_checkpoint_counts") {
  const long commit = commit_of(calls());
  for (const StorageCall& call : calls()) {
    if (call.number <= commit || call.kind != "sync" || !call.path.ends_with("/checkpoints")) continue;
    const fs::path run = run_of_step("unsynced", struck - 1);
    const Ended end = go_on("unsynced", background("EIO", call.number));
    CHECK_MESSAGE(end.exit_code == 0, end.errors);
    CHECK(end.says("a power cut"));
    CHECK_FALSE(has_failed_save(run, struck));
    CHECK(problem_of(run, {3, 4}).empty());
    return;
  }
  FAIL("no sync of the folder after the commit");
}

TEST_CASE("a_slow_disk_holds_training_up_where_saves_are_due_too_often_and_says_so") {
  constexpr long for_ever = 1'000'000;
  const fs::path run = run_of_step("slow", struck - 1);
  StorageFault fault = background("slow", 1, "sync");
  fault.times = for_ever;
  const Ended end = go_on("slow", fault);
  CHECK_MESSAGE(end.exit_code == 0, end.errors);
  const nlohmann::json written = record_of_save(run, struck);
  const nlohmann::json waiting = record_of_save(run, struck + 1);
  REQUIRE(written.is_object());
  REQUIRE(waiting.is_object());
  // Three files, the manifest, two folders: at least four syncs of 0.8 s.
  CHECK(written.at("seconds") > 3.0);
  CHECK(written.at("background") == true);
  CHECK(written.at("stall_seconds") < written.at("seconds"));
  CHECK(waiting.at("waited_seconds") > 0.5);
  CHECK(problem_of(run, {3, 4}).empty());
}

// A run asked to leave while it writes in the background. Its storage takes what each save has written when it is let.
class LeavingRun {
 public:
  explicit LeavingRun(const std::string& name)
      : name_(name), folder_(run_of_step(name, struck - 1)), release_(workspace() / (name + ".release")) {
    fs::remove_all(release_);
    fs::create_directory(release_);
    constexpr long for_ever = 1'000'000;
    StorageFault fault = background("hold", 1, "sync");
    fault.times = for_ever;
    fault.save = 0;  // whichever comes
    fault.release = release_.string();
    // None but the first is due before the run has been told to leave.
    fault.settings.insert(fault.settings.end(), {"train.steps=1000000", "checkpoint.every=5s", "checkpoint.keep=10"});
    agent_.emplace(launch_with(name, fault));
    REQUIRE_MESSAGE(await_save_after(""), agent_->errors());
    first_ = newest_;
    agent_->signal(SIGTERM);
    REQUIRE_MESSAGE(
        wait_until([this] { return agent_->errors().find("saves and leaves") != std::string::npos; }, patience),
        agent_->errors());
    // It does: it waits for the save before the last one.
    long step = -1;
    while (step != std::exchange(step, newest_step(folder_))) sleep_for(0.5);
  }
  // The last save has begun, and is held up.
  bool enter_last_save() {
    let(first_);
    return await_save_after(first_);
  }
  void let_last_save() const { let(newest_); }
  // "step-00000007"
  std::string first_name() const { return first_.substr(std::string(".saving-").size(), 13); }
  Ended go_on_for(int steps, long from) const {
    return go_on(name_, {.settings = {"checkpoint.background=true", "train.steps=" + std::to_string(from + steps)}});
  }
  const fs::path& folder() const { return folder_; }
  Program& agent() { return *agent_; }

  static constexpr double patience = 100.0;

 private:
  void let(const std::string& save) const { write_file(release_ / save, ""); }
  bool await_save_after(const std::string& other) {
    const auto is_there = [&] {
      for (const std::string& name : hidden_names(folder_, ".saving-"))
        if (name != other) newest_ = name;
      return newest_ != other;
    };
    return wait_until([&] { return is_there() || !agent_->running(); }, patience) && is_there();
  }

  std::string name_;
  fs::path folder_;
  fs::path release_;
  std::optional<Program> agent_;
  std::string first_;
  std::string newest_;
};

TEST_CASE("a_run_asked_to_leave_while_it_writes_in_the_background_ends_that_save_and_writes_its_last_one") {
  LeavingRun run("leaving");
  REQUIRE(run.enter_last_save());
  run.let_last_save();
  const Ended end = run.agent().wait(LeavingRun::patience);
  INFO(end.errors);
  CHECK(end.exit_code == 75);
  const std::vector<std::string> names = checkpoint_names(run.folder());
  REQUIRE(names.size() >= 2);
  const long last = trajectory_of(run.folder()).last_step();
  CHECK(names.back() == checkpoint("", static_cast<int>(last)).filename());
  CHECK(names[names.size() - 2] == run.first_name());
  for (const std::string& name : names) CHECK(verifies(run.folder() / "checkpoints" / name));
  CHECK(record_of_save(run.folder(), std::stoi(run.first_name().substr(5))).at("background") == true);
  const nlohmann::json written = record_of_save(run.folder(), static_cast<int>(last));
  CHECK(written.at("background") == false);
  CHECK(written.at("waited_seconds") > 0.0);
  CHECK(left_behind(run.folder(), "").empty());
  const Ended again = run.go_on_for(3, last);
  CHECK_MESSAGE(again.exit_code == 0, again.errors);
  CHECK(again.says("resuming from " + checkpoint(run.folder(), static_cast<int>(last)).string()));
}

TEST_CASE("a_run_killed_while_it_leaves_goes_on_from_the_last_save_that_ended") {
  for (const bool in_last_save : {false, true}) {
    CAPTURE(in_last_save);
    LeavingRun run("leaving-killed");
    if (in_last_save) REQUIRE(run.enter_last_save());
    const auto workers = children_of(run.agent().pid());
    REQUIRE(workers.size() == 1);
    ::kill(workers.front(), SIGKILL);
    const Ended end = run.agent().wait(LeavingRun::patience);
    CHECK_MESSAGE(end.exit_code != 0, end.errors);
    const std::vector<std::string> names = checkpoint_names(run.folder());
    REQUIRE(names.size() >= 2);
    CHECK((names.back() == run.first_name()) == in_last_save);
    for (const std::string& name : names) CHECK(verifies(run.folder() / "checkpoints" / name));
    const Ended again = run.go_on_for(3, std::stol(names.back().substr(5)));
    CHECK_MESSAGE(again.exit_code == 0, again.errors);
    CHECK(again.says("resuming from " + (run.folder() / "checkpoints" / names.back()).string()));
    CHECK(left_behind(run.folder(), "").empty());
  }
}

TEST_CASE("two_ranks_killed_while_they_write_in_the_background_go_on_with_the_losses_of_undisturbed_ones") {
  const std::vector<std::string> settings = {"checkpoint.background=true", "parallel.data=2", "train.micro_batch=1"};
  const fs::path whole = run_of_step("ranks-whole", struck - 1);
  const Ended undisturbed = go_on("ranks-whole", {.settings = settings});
  REQUIRE_MESSAGE(undisturbed.exit_code == 0, undisturbed.errors);
  for (const long at : {1L, 2L, 3L, 4L, 5L}) {
    CAPTURE(at);
    const fs::path run = run_of_step("ranks", struck - 1);
    StorageFault fault = background("kill-before", at, "sync,rename");
    fault.settings = settings;
    const Ended end = go_on("ranks", fault);
    CHECK_MESSAGE(end.exit_code == killed_exit, end.errors);
    for (const std::string& name : checkpoint_names(run)) CHECK(verifies(run / "checkpoints" / name));
    CHECK(checkpoint_names(run).size() >= 2);
    const Ended again = go_on("ranks", {.settings = settings});
    CHECK_MESSAGE(again.exit_code == 0, again.errors);
    CHECK(trajectory_of(run).steps == trajectory_of(whole).steps);
    CHECK(left_behind(run, "").empty());
  }
}

}  // namespace
}  // namespace scaletrain
