// Interrupted from outside at any moment, a run continues as if nothing had happened: the same numbers to the last bit.
#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <random>
#include <set>

#include "tiny_run.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

constexpr double patience = 60.0;

// Every number of the run must be spelled as in the undisturbed one.
void check_same_as_undisturbed(const fs::path& run) {
  const Trajectory expected = trajectory_of(undisturbed_run());
  const Trajectory found = trajectory_of(run);
  REQUIRE(expected.last_step() == tiny_steps);
  CHECK(found.steps.size() == tiny_steps);
  for (const auto& entry : expected.steps) {
    const long step = entry.first;
    const auto other = found.steps.find(step);
    const std::string theirs = other == found.steps.end() ? "missing" : other->second;
    REQUIRE_MESSAGE(theirs == entry.second, "step ", step);
  }
  CHECK(found.evaluations == expected.evaluations);
}

void check_no_process_left(const fs::path& run) {
  CHECK(wait_until([&] { return processes_with(run.string()).empty(); }, patience));
}

pid_t worker_of(const Program& agent) {
  const auto children = children_of(agent.pid());
  return children.empty() ? -1 : children.front();
}

void check_newest_verifies(const fs::path& run) {
  if (checkpoint_names(run).empty()) return;
  const Ended end = workspace().run({"checkpoint", "verify", run.string()});
  CHECK_MESSAGE(end.exit_code == 0, end.errors);
}

// One kill -9 and its moment.
struct Kill {
  enum class Moment { after_start, after_step, in_save };
  bool agent = false;  // else the worker
  Moment moment = Moment::after_step;
  long step = 0;  // armed from this step on
  double delay = 0.0;
};

std::vector<Kill> seeded_kills(unsigned seed, int count) {
  std::mt19937 random(seed);
  const auto fraction = [&random] { return static_cast<double>(random() % 1000) / 1000.0; };
  std::vector<Kill> kills;
  for (int i = 0; i < count; ++i) {
    Kill kill;
    kill.agent = random() % 2 == 0;
    switch (i % 5) {
      case 0:
        kill.moment = Kill::Moment::after_start;
        kill.delay = 0.1 * fraction();  // about what a start takes
        break;
      case 1:
      case 3:
        kill.moment = Kill::Moment::in_save;
        kill.delay = 0.008 * fraction();
        break;
      default:
        kill.delay = 0.03 * fraction();
    }
    // The last is armed well before the end, so that each of them meets a living run.
    kill.step = static_cast<long>(0.9 * tiny_steps) * i / count;
    kills.push_back(kill);
  }
  return kills;
}

// A run that is started again whenever it ends otherwise than finished.
class TormentedRun {
 public:
  explicit TormentedRun(const std::string& name)
      : folder_(workspace() / name), arguments_(workspace().training(name, settings)) {}

  // False if the run finished before the moment came.
  bool suffer(const Kill& kill) {
    keep_running();
    if (kill.moment == Kill::Moment::after_start) {
      wait_until([&] { return worker_of(*agent_) > 0 || !agent_->running(); }, patience);
    } else {
      const bool reached =
          wait_until([&] { return keep_running() == 0 || newest_step(folder_) >= kill.step; }, patience);
      if (!reached || finished_) return false;
    }
    if (kill.moment != Kill::Moment::in_save) sleep_for(kill.delay);
    // A restart may be under way at this moment: there is always a worker again soon.
    pid_t worker = -1;
    wait_until([&] { return (worker = worker_of(*agent_)) > 0 || !agent_->running(); }, patience);
    if (kill.moment == Kill::Moment::in_save && !wait_for_save(kill.delay)) return false;
    const pid_t victim = kill.agent ? agent_->pid() : worker;
    if (victim <= 0 || !agent_->running()) return false;
    ::kill(victim, SIGKILL);
    CHECK(wait_until([&] { return !is_alive(victim); }, patience));
    bool is_inside_save = false;
    for (const std::string& name : hidden_names(folder_, ".saving-"))
      is_inside_save = left_behind_.insert(name).second || is_inside_save;
    if (is_inside_save) ++inside_saves;
    if (kill.agent) {
      agent_->wait(patience);
      // The worker may not outlive its agent.
      CHECK(wait_until([&] { return worker <= 0 || !is_alive(worker); }, patience));
      check_newest_verifies(folder_);
    }
    return true;
  }

  int finish() {
    while (keep_running() != 0) sleep_for(0.002);
    return last_exit_code_;
  }

  int starts = 0;
  int inside_saves = 0;

 private:
  // Returns `delay` seconds after the beginning of a save that is still going on then; a save that was shorter is let
  // go and the next one met earlier.
  bool wait_for_save(double delay) {
    const auto is_saving = [this] { return !hidden_names(folder_, ".saving-").empty(); };
    for (const double end = test_clock() + patience; test_clock() < end; delay /= 2) {
      // A save that died before left its folder; the next save to complete removes it.
      while (is_saving() && test_clock() < end)
        if (keep_running() == 0) return false;
      while (!is_saving() && test_clock() < end)
        if (keep_running() == 0) return false;
      sleep_for(delay);
      if (is_saving()) return true;
    }
    return false;
  }

  // 0 once it has finished.
  int keep_running() {
    if (finished_) return 0;
    if (agent_ && agent_->running()) return 1;
    if (agent_) {
      last_exit_code_ = agent_->wait().exit_code;
      // Killed (-1), or its worker was killed three times at one step (6): a person would start it again.
      if (last_exit_code_ != -1 && last_exit_code_ != 6) {
        finished_ = true;
        INFO(agent_->errors());
        CHECK(last_exit_code_ == 0);
        return 0;
      }
    }
    agent_ = std::make_unique<Program>(workspace().launch(arguments_));
    ++starts;
    return 1;
  }

  static inline const std::vector<std::string> settings = {"checkpoint.every=4", "checkpoint.keep=3",
                                                           "supervise.max_restarts=100"};
  fs::path folder_;
  std::vector<std::string> arguments_;
  std::unique_ptr<Program> agent_;
  std::set<std::string> left_behind_;  // by saves that died; each has a name of its own
  bool finished_ = false;
  int last_exit_code_ = -1;
};

TEST_CASE("twenty_kills_at_random_moments_change_no_number_of_the_run") {
  const fs::path run = workspace() / "tormented";
  TormentedRun tormented("tormented");
  constexpr unsigned seed = 20240607;
  const std::vector<Kill> kills = seeded_kills(seed, 20);
  int done = 0;
  for (const Kill& kill : kills) {
    CAPTURE(done);
    REQUIRE(tormented.suffer(kill));
    ++done;
  }
  const int code = tormented.finish();
  MESSAGE("seed ", seed, ": ", done, " kills, ", tormented.inside_saves, " of them inside a save, ", tormented.starts,
          " starts by hand");
  CHECK(code == 0);
  CHECK(done == 20);
  CHECK(tormented.inside_saves >= 3);
  check_same_as_undisturbed(run);
  check_no_process_left(run);
  // What dead saves left is swept up by the saves after them.
  CHECK(hidden_names(run, ".saving-").empty());
  CHECK(hidden_names(run, ".removing-").empty());
  CHECK(checkpoint_names(run).size() >= 2);
}

TEST_CASE("a_kill_while_old_checkpoints_are_pruned_leaves_two_that_verify") {
  const fs::path run = workspace() / "pruned";
  int half_removed = 0;
  for (int kill = 1; kill <= 6; ++kill) {
    Program agent(workspace().launch(workspace().training("pruned", {"checkpoint.every=4", "checkpoint.keep=2"})));
    REQUIRE(wait_until([&] { return newest_step(run) >= 20 * kill || !agent.running(); }, patience));
    // Without a pause between the looks: a folder by this name lives for less than a millisecond.
    const double end = test_clock() + patience;
    while (hidden_names(run, ".removing-").empty() && test_clock() < end && agent.running()) continue;
    agent.signal(SIGKILL);
    agent.wait();
    CHECK(wait_until([&] { return processes_with(run.string()).empty(); }, patience));
    if (!hidden_names(run, ".removing-").empty()) ++half_removed;
    int verified = 0;
    for (const std::string& name : checkpoint_names(run))
      if (workspace().run({"checkpoint", "verify", (run / "checkpoints" / name).string()}).exit_code == 0) ++verified;
    CHECK(verified >= 2);
  }
  MESSAGE(half_removed, " of 6 kills left a folder half removed");
  const Ended end = workspace().run(workspace().training("pruned", {"checkpoint.every=4", "checkpoint.keep=2"}));
  CHECK_MESSAGE(end.exit_code == 0, end.errors);
  check_same_as_undisturbed(run);
  CHECK(hidden_names(run, ".").empty());
}

// Starts a run, and calls act(agent) once step 30 was taken.
template <class Act>
Ended interrupt_after_30_steps(const std::string& name, Act act) {
  Program agent(slowed(workspace().launch(workspace().training(name, {"checkpoint.every=1000"})), 0.1, 60.0));
  REQUIRE(wait_until([&] { return newest_step(workspace() / name) >= 30 || !agent.running(); }, patience));
  act(agent);
  return agent.wait(patience);
}

void check_interrupted_and_resumes(const std::string& name, const Ended& end) {
  const fs::path run = workspace() / name;
  INFO(end.errors);
  CHECK(end.exit_code == 75);
  const std::vector<std::string> names = checkpoint_names(run);
  REQUIRE(names.size() == 1);
  CHECK(trajectory_of(run).last_step() >= 30);
  CHECK(trajectory_of(run).last_step() < tiny_steps);
  CHECK(end.says("is saved in " + (run / "checkpoints" / names.front()).string() +
                 "; to go on: scaletrain run config.yaml --set run.directory="));
  // Nothing of what was computed is lost: the checkpoint is that of the last step.
  CHECK(checkpoint(run, static_cast<int>(trajectory_of(run).last_step())).filename() == names.front());
  check_no_process_left(run);
  const Ended resumed = workspace().run(workspace().training(name, {"checkpoint.every=1000"}));
  CHECK_MESSAGE(resumed.exit_code == 0, resumed.errors);
  CHECK(resumed.says("resuming from"));
  check_same_as_undisturbed(run);
}

TEST_CASE("sigterm_saves_the_last_step_and_exits_with_75") {
  check_interrupted_and_resumes("term",
                                interrupt_after_30_steps("term", [](Program& agent) { agent.signal(SIGTERM); }));
}

TEST_CASE("sigusr1_saves_the_last_step_and_exits_with_75") {
  check_interrupted_and_resumes("usr1",
                                interrupt_after_30_steps("usr1", [](Program& agent) { agent.signal(SIGUSR1); }));
}

TEST_CASE("sigterm_to_the_worker_alone_does_the_same") {
  check_interrupted_and_resumes("term-worker", interrupt_after_30_steps("term-worker", [](Program& agent) {
                                  const pid_t worker = worker_of(agent);
                                  REQUIRE(worker > 0);
                                  ::kill(worker, SIGTERM);
                                }));
}

TEST_CASE("further_signals_during_the_save_do_not_disturb_it") {
  const fs::path run = workspace() / "impatient";
  const Ended end = interrupt_after_30_steps("impatient", [&](Program& agent) {
    agent.signal(SIGTERM);
    wait_until([&] { return !hidden_names(run, ".saving-").empty() || !agent.running(); }, patience);
    for (const int number : {SIGTERM, SIGUSR1, SIGINT, SIGTERM}) {
      agent.signal(number);
      const pid_t worker = worker_of(agent);
      if (worker > 0) ::kill(worker, number);
      sleep_for(0.001);
    }
  });
  check_interrupted_and_resumes("impatient", end);
}

TEST_CASE("an_interruption_while_the_worker_starts_is_not_lost") {
  Program agent(workspace().launch(workspace().training("early-term")));
  REQUIRE(wait_until([&] { return worker_of(agent) > 0; }, patience));
  agent.signal(SIGTERM);
  const Ended end = agent.wait(patience);
  CHECK_MESSAGE(end.exit_code == 75, end.errors);
  const Ended resumed = workspace().run(workspace().training("early-term"));
  CHECK_MESSAGE(resumed.exit_code == 0, resumed.errors);
  check_same_as_undisturbed(workspace() / "early-term");
}

// Interrupted and requeued: the scheduler gives the same command again until it ends with 0.
void check_requeued_branch(const std::string& name, const fs::path& from, int first_step) {
  const fs::path run = workspace() / name;
  std::vector<std::string> arguments = workspace().training(name, {"checkpoint.every=1000"});
  arguments.insert(arguments.end(), {"--resume", from.string()});
  long reached = first_step;
  for (int interruption = 0; interruption < 2; ++interruption) {
    CAPTURE(interruption);
    Program agent(slowed(workspace().launch(arguments), 0.1, 60.0));
    // At the first step of this start. Until the restart is written, metrics.jsonl ends with the last step of what is
    // being abandoned.
    const auto has_stepped = [&] {
      const long last = trajectory_of(run).last_step();
      return last > reached && last < tiny_steps;
    };
    REQUIRE(wait_until([&] { return has_stepped() || !agent.running(); }, patience));
    agent.signal(SIGTERM);
    const Ended end = agent.wait(patience);
    CHECK_MESSAGE(end.exit_code == 75, end.errors);
    CHECK(trajectory_of(run).last_step() > reached);
    reached = trajectory_of(run).last_step();
    CHECK(fs::exists(checkpoint(run, static_cast<int>(reached))));
  }
  if (from.string().starts_with(run.string())) fs::remove_all(from);  // as retention may
  const Ended end = workspace().run(arguments);
  CHECK_MESSAGE(end.exit_code == 0, end.errors);
  CHECK(end.says("resuming from " + checkpoint(run, static_cast<int>(reached)).string()));
  const Trajectory expected = trajectory_of(undisturbed_run());
  const Trajectory found = trajectory_of(run);
  CHECK(found.last_step() == tiny_steps);
  for (const auto& entry : found.steps) CHECK(expected.steps.at(entry.first) == entry.second);
}

TEST_CASE("a_resume_by_path_given_again_after_75_goes_on_in_a_run_of_its_own") {
  check_requeued_branch("requeued", checkpoint(undisturbed_run(), 60), 60);
  CHECK(trajectory_of(workspace() / "requeued").steps.size() == tiny_steps - 60);
}

TEST_CASE("a_resume_by_path_given_again_after_75_goes_on_in_the_same_run") {
  const fs::path run = copy_run(undisturbed_run(), "requeued-inside");
  for (int step = 140; step <= tiny_steps; step += 20) fs::remove_all(checkpoint(run, step));
  check_requeued_branch("requeued-inside", checkpoint(run, 60), 60);
  // Of 80, 100 and 120 the two newest, and none of the new branch.
  std::vector<std::string> abandoned = hidden_names(run, ".abandoned-");
  std::sort(abandoned.begin(), abandoned.end());
  CHECK(abandoned == std::vector<std::string>{".abandoned-step-00000100-0", ".abandoned-step-00000120-0"});
  check_same_as_undisturbed(run);
}

TEST_CASE("a_stopped_worker_is_named_by_the_heartbeat_killed_and_replaced") {
  Program agent(workspace().launch(workspace().training("stopped", {"supervise.heartbeat=2s"})));
  REQUIRE(wait_until([&] { return newest_step(workspace() / "stopped") >= 45 || !agent.running(); }, patience));
  const pid_t worker = worker_of(agent);
  REQUIRE(worker > 0);
  ::kill(worker, SIGSTOP);
  const Ended end = agent.wait(patience);
  CHECK_MESSAGE(end.exit_code == 0, end.errors);
  CHECK(end.says("supervise.heartbeat"));
  CHECK(end.says("worker " + std::to_string(worker)));
  CHECK_FALSE(is_alive(worker));
  check_same_as_undisturbed(workspace() / "stopped");
}

TEST_CASE("a_worker_that_dies_three_times_at_one_step_ends_the_run_with_6") {
  Program agent(workspace().launch(workspace().training("hopeless")));
  std::vector<pid_t> killed;
  while (killed.size() < 3) {
    pid_t worker = -1;
    REQUIRE(wait_until([&] { return (worker = worker_of(agent)) > 0 && (killed.empty() || worker != killed.back()); },
                       patience));
    ::kill(worker, SIGKILL);
    killed.push_back(worker);
  }
  const Ended end = agent.wait(patience);
  CHECK_MESSAGE(end.exit_code == 6, end.errors);
  CHECK(end.says("3 times at step 0"));
}

TEST_CASE("a_killed_agent_takes_its_worker_along_and_the_next_start_resumes") {
  const fs::path run = workspace() / "headless";
  Program agent(workspace().launch(workspace().training("headless")));
  REQUIRE(wait_until([&] { return newest_step(run) >= 45; }, patience));
  const pid_t worker = worker_of(agent);
  REQUIRE(worker > 0);
  agent.signal(SIGKILL);
  CHECK(wait_until([&] { return !is_alive(worker); }, patience));
  agent.wait();
  // The lock of the dead agent is still there.
  CHECK(fs::exists(run / "lock.json"));
  const Ended resumed = workspace().run(workspace().training("headless"));
  CHECK_MESSAGE(resumed.exit_code == 0, resumed.errors);
  check_same_as_undisturbed(run);
  CHECK_FALSE(fs::exists(run / "lock.json"));
}

TEST_CASE("a_run_stops_and_pins_by_its_accuracy_on_a_task_and_evaluate_finds_the_same") {
  std::string questions;
  for (int i = 0; i < 20; ++i)
    questions += "{\"question\": \"the " + std::string(static_cast<std::size_t>(i % 5), 'a') +
                 "\", \"choices\": [\"eta\", \"\\u0001\\u0002\\u0003\"], \"answer\": 0}\n";
  workspace().write("easy.jsonl", questions);
  const std::vector<std::string> settings = {"evaluate.tasks=[{name: easy, path: easy.jsonl}]",
                                             "early_stop={metric: task/easy/accuracy, patience: 100, target: 1}",
                                             "data.validation=[]", "checkpoint.every=20", "train.steps=100"};
  const Ended end = workspace().run(workspace().training("by-task", settings));
  REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
  const fs::path run = workspace() / "by-task";
  const std::string metrics = read_file(run / "metrics.jsonl");
  // Letters are soon likelier than control characters.
  CHECK(metrics.find("\"kind\":\"early_stop\"") != std::string::npos);
  CHECK(metrics.find("task/easy/accuracy 1 reached early_stop.target 1") != std::string::npos);
  const std::size_t last = metrics.rfind("\"kind\":\"task\"");
  REQUIRE(last != std::string::npos);
  const std::size_t begin = metrics.rfind('\n', last) + 1;
  const nlohmann::json line = nlohmann::json::parse(metrics.substr(begin, metrics.find('\n', begin) - begin));
  CHECK(line.at("task") == "easy");
  CHECK(line.at("accuracy") == 1.0);
  CHECK(line.at("questions") == 20);
  const Ended measured = workspace().run(
      {"evaluate", run.string(), "--best", "--task", "easy=" + (workspace() / "easy.jsonl").string(), "--json"});
  REQUIRE_MESSAGE(measured.exit_code == 0, measured.errors);
  CHECK(measured.says("the best one (task/easy/accuracy 1"));
  const nlohmann::json found = nlohmann::json::parse(measured.output).at(0);
  CHECK(found.at("accuracy") == line.at("accuracy"));
  CHECK(found.at("normalized_accuracy") == line.at("normalized_accuracy"));
  const Ended again = workspace().run(workspace().training("by-task", settings));
  CHECK(again.exit_code == 0);
  CHECK(again.says("already complete"));
  // Other questions are another metric: the run goes on.
  workspace().write("easy.jsonl", questions + questions.substr(0, questions.find('\n') + 1));
  const Ended on = workspace().run(workspace().training("by-task", settings));
  CHECK_MESSAGE(on.exit_code == 0, on.errors);
  CHECK(on.says("starts afresh"));
}

TEST_CASE("the_state_of_early_stopping_survives_a_resume") {
  // No later loss beats the first one by 10 nats, so the run stops after three evaluations without improvement: at
  // step 80.
  const std::vector<std::string> settings = {"early_stop={metric: validation/held/loss, patience: 3, min_delta: 10}",
                                             "checkpoint.every=10", "checkpoint.keep=4"};
  const Ended first = workspace().run(workspace().training("early-stop", settings));
  REQUIRE_MESSAGE(first.exit_code == 0, first.errors);
  const fs::path run = workspace() / "early-stop";
  CHECK(trajectory_of(run).last_step() == 80);
  CHECK(read_file(run / "metrics.jsonl").find("\"kind\":\"early_stop\"") != std::string::npos);
  // The best one is pinned beside the newest four.
  CHECK(checkpoint_names(run) ==
        std::vector<std::string>{"step-00000020", "step-00000050", "step-00000060", "step-00000070", "step-00000080"});
  const Ended again = workspace().run(workspace().training("early-stop", settings));
  CHECK(again.exit_code == 0);
  CHECK(again.says("already complete"));
  CHECK(trajectory_of(run).last_step() == 80);

  // From step 50: one of the three evaluations is part of the state.
  const fs::path resumed = copy_run(run, "early-stop-resumed");
  for (const int step : {60, 70, 80}) fs::remove_all(checkpoint(resumed, step));
  const Ended second = workspace().run(workspace().training("early-stop-resumed", settings));
  CHECK_MESSAGE(second.exit_code == 0, second.errors);
  CHECK(trajectory_of(resumed).last_step() == 80);
  CHECK(trajectory_of(resumed).steps == trajectory_of(run).steps);
}

}  // namespace
}  // namespace scaletrain
