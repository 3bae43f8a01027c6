// scripts/slurm/train.sbatch on a real SLURM cluster of virtual nodes (scripts/slurm/testbed.sh): jobs that are
// disturbed end with the losses, to the bit, of one that was not. Needs root; skipped by name where the testbed cannot
// be started.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <fstream>
#include <sstream>
#include <string>

#include "ranks.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

const fs::path scripts = fs::path(SCALETRAIN_SOURCE_FOLDER) / "scripts" / "slurm";

class Testbed {
 public:
  Testbed() {
    if (!is_root()) return;
    // Not below workspace(): what runs with that path in its command line counts as a process of a run.
    const Ended start = script({"start", folder_.path().string(), "4"});
    if (start.exit_code != 0) problem_ = start.errors;
  }
  ~Testbed() {
    if (is_root()) script({"stop", folder_.path().string()});
  }
  Testbed(const Testbed&) = delete;
  Testbed& operator=(const Testbed&) = delete;

  static bool is_root() { return ::geteuid() == 0; }
  const std::string& problem() const { return problem_; }  // why it could not be started; empty: it was
  std::pair<std::string, std::string> variable() const { return {"SLURM_CONF", (folder_ / "slurm.conf").string()}; }
  void kill_node(const std::string& node) const { script({"node-down", folder_.path().string(), node}); }
  void start_node(const std::string& node) const { script({"node-up", folder_.path().string(), node}); }

 private:
  static Ended script(std::vector<std::string> arguments) {
    return run_program({.executable = scripts / "testbed.sh", .arguments = std::move(arguments)}, 300.0);
  }

  TempFolder folder_;
  std::string problem_;
};

const Testbed& testbed() {
  static const Testbed bed;
  return bed;
}

bool is_there() {
  if (!Testbed::is_root()) {
    MESSAGE("skipped: only root can start a SLURM testbed");
    return false;
  }
  REQUIRE_MESSAGE(testbed().problem().empty(), testbed().problem());
  return true;
}

// A program of SLURM, by name.
std::string ask(const std::string& program, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), program);
  Launch launch{.executable = "/usr/bin/env", .arguments = std::move(arguments)};
  launch.environment.push_back(testbed().variable());
  return run_program(launch, 60.0).output;
}

class Job {
 public:
  // Options of sbatch; settings of the run.
  Job(const std::string& run, const Settings& options, const Settings& settings,
      const std::vector<std::pair<std::string, std::string>>& environment = {})
      : folder_(layout_folder(run)) {
    Launch launch = layout_launch(run, settings);
    std::vector<std::string> arguments = {"sbatch", "--parsable", "--output=" + log().string()};
    arguments.insert(arguments.end(), options.begin(), options.end());
    arguments.push_back((scripts / "train.sbatch").string());
    arguments.insert(arguments.end(), launch.arguments.begin() + 1, launch.arguments.end());  // without `run`
    launch.executable = "/usr/bin/env";
    launch.arguments = std::move(arguments);
    launch.environment.insert(launch.environment.end(), environment.begin(), environment.end());
    launch.environment.push_back(testbed().variable());
    launch.environment.emplace_back("SCALETRAIN", SCALETRAIN_PROGRAM);
    const Ended end = run_program(launch, 60.0);
    REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
    id_ = end.output.substr(0, end.output.find_first_of(";\n"));
  }
  ~Job() { ask("scancel", {id_}); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const std::string& id() const { return id_; }
  fs::path folder() const { return folder_; }
  std::string output() const { return fs::exists(log()) ? read_file(log()) : std::string(); }
  // "JobState", "Restarts", "ExitCode" ...
  std::string property(const std::string& name) const {
    const std::string text = ask("scontrol", {"show", "job", "--oneliner", id_});
    const std::size_t at = text.find(" " + name + "=");
    if (at == std::string::npos) return {};
    const std::size_t begin = at + name.size() + 2;
    return text.substr(begin, text.find_first_of(" \n", begin) - begin);
  }
  bool wait_for_step(long step, double seconds = 60.0) const {
    return wait_until([&] { return newest_step(folder_) >= step; }, seconds);
  }
  bool wait_for_end(double seconds) const {
    return wait_for_state({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}, seconds);
  }
  bool wait_for_start(double seconds) const { return wait_for_state({"RUNNING"}, seconds); }

 private:
  // SLURM lets two minutes pass before a job that was put back may start again; here it need not wait.
  bool wait_for_state(const std::vector<std::string>& states, double seconds) const {
    const double end = test_clock() + seconds;
    while (test_clock() < end) {
      const std::string state = property("JobState");
      if (std::find(states.begin(), states.end(), state) != states.end()) return true;
      if (state == "PENDING" && property("Reason") == "BeginTime")
        ask("scontrol", {"update", "JobId=" + id_, "StartTime=now"});
      sleep_for(0.5);
    }
    return false;
  }
  fs::path log() const { return folder_.string() + ".out"; }

  fs::path folder_;
  std::string id_;
};

constexpr int slurm_steps = 400;  // several seconds, so that there is a middle
const Settings two_nodes = {"--nodes=2", "--nodelist=n0,n1"};
// A constant learning rate: a step's loss does not depend on how many steps there will be.
const Settings two_replicas = {"parallel.data=auto", "train.steps=" + std::to_string(slurm_steps),
                               "train.lr_schedule={type: constant, warmup: 10}", "evaluate.every=100",
                               "checkpoint={every: 20, keep: 100}"};

// A run of two nodes that nothing disturbed.
const Trajectory& undisturbed() {
  static const Trajectory trajectory = [] {
    const Job job("slurm-whole", two_nodes, two_replicas);
    REQUIRE(job.wait_for_end(120.0));
    REQUIRE_MESSAGE(job.property("JobState") == "COMPLETED", job.output());
    return trajectory_of(job.folder());
  }();
  return trajectory;
}

void check_same_trajectory(const Job& job) {
  const Trajectory found = trajectory_of(job.folder());
  CHECK(found.steps == undisturbed().steps);
  CHECK(found.evaluations == undisturbed().evaluations);
  check_no_process_left(job.folder().filename().string());
}

// Step and data degree of every start and restart.
std::vector<std::pair<long, long>> starts_of(const Job& job) {
  std::vector<std::pair<long, long>> starts;
  std::istringstream lines(read_file(job.folder() / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const auto record = nlohmann::json::parse(line, nullptr, false);
    if (record.is_object() && record.contains("layout"))
      starts.emplace_back(record.value("step", 0L), record["layout"]["data"].get<long>());
  }
  return starts;
}

std::vector<long> replicas_of_starts(const Job& job) {
  std::vector<long> replicas;
  for (const auto& start : starts_of(job)) replicas.push_back(start.second);
  return replicas;
}

// The agent of a job that has this variable ("SLURM_NODEID=1") in its environment; -1: there is none.
pid_t agent_with(const Job& job, const std::string& variable) {
  for (const pid_t pid : processes_with(job.folder().string())) {
    const fs::path process = fs::path("/proc") / std::to_string(pid);
    std::string name;
    std::ifstream(process / "comm") >> name;
    if (name != "scaletrain") continue;
    std::ifstream in(process / "environ");
    for (std::string found; std::getline(in, found, '\0');)
      if (found == variable) return pid;
  }
  return -1;
}

void kill_agent(const Job& job, const std::string& variable) {
  const pid_t agent = agent_with(job, variable);
  REQUIRE_MESSAGE(agent > 0, variable);
  ::kill(agent, SIGKILL);
}

// Under another layout: to 50 steps beyond the last restart. Farther on the roundings of the layouts have grown apart.
void check_close_losses(const Job& job) {
  const Trajectory found = trajectory_of(job.folder());
  CHECK(found.last_step() == slurm_steps);
  const long last = starts_of(job).back().first + 50;
  for (const auto& step : undisturbed().steps) {
    if (step.first > last) break;
    const double loss = std::stod(step.second);
    REQUIRE(found.steps.contains(step.first));
    CHECK(std::abs(std::stod(found.steps.at(step.first)) - loss) <= 1e-5 * std::abs(loss));
  }
}

}  // namespace

TEST_CASE("a_job_on_two_nodes_runs_one_agent_per_node_to_the_end") {
  if (!is_there()) return;
  CHECK(undisturbed().last_step() == slurm_steps);
  const std::string log = read_file(layout_folder("slurm-whole.out"));
  CHECK_MESSAGE(log.find("ended with 0") != std::string::npos, log);
  CHECK(fs::exists(layout_folder("slurm-whole") / "logs" / "agent-00.log"));
  CHECK(fs::exists(layout_folder("slurm-whole") / "logs" / "agent-01.log"));
  CHECK(fs::exists(layout_folder("slurm-whole") / "logs" / "rank-00001.log"));
  check_no_process_left("slurm-whole");
}

TEST_CASE("a_job_that_is_requeued_in_the_middle_goes_on_where_it_was") {
  if (!is_there()) return;
  const Job job("slurm-requeued", two_nodes, two_replicas);
  REQUIRE_MESSAGE(job.wait_for_step(60), job.output());
  ask("scontrol", {"requeue", job.id()});
  REQUIRE(job.wait_for_end(180.0));
  CHECK_MESSAGE(job.property("JobState") == "COMPLETED", job.output());
  CHECK(job.property("Restarts") == "1");
  check_same_trajectory(job);
}

// SLURM looks at time limits seldom, and the signal may come up to a minute early: the run is long enough for either.
TEST_CASE("a_job_that_reaches_its_time_limit_saves_and_puts_itself_back") {
  if (!is_there()) return;
  Settings options = two_nodes;
  options.insert(options.end(), {"--time=00:01:00", "--signal=B:USR1@40"});
  Settings settings = two_replicas;
  settings.emplace_back("train.steps=1000000");
  const Job job("slurm-limited", options, settings);
  const std::string put_back = "after signal USR1; back into the queue";
  REQUIRE_MESSAGE(wait_until([&] { return job.output().find(put_back) != std::string::npos; }, 120.0), job.output());
  const long reached = trajectory_of(job.folder()).last_step();
  CHECK(fs::exists(checkpoint(job.folder(), static_cast<int>(reached))));
  REQUIRE_MESSAGE(job.wait_for_start(60.0), job.output());
  REQUIRE_MESSAGE(job.wait_for_step(reached + 20), job.output());
  ask("scancel", {job.id()});
  REQUIRE(job.wait_for_end(60.0));
  CHECK(job.property("Restarts") == "1");
  const Trajectory found = trajectory_of(job.folder());
  for (const auto& step : undisturbed().steps) {
    const auto other = found.steps.find(step.first);
    if (other != found.steps.end()) CHECK(other->second == step.second);
  }
}

TEST_CASE("a_job_whose_agent_is_killed_is_put_back") {
  if (!is_there()) return;
  for (const std::string node : {"0", "1"}) {
    const Job job("slurm-killed-" + node, two_nodes, two_replicas, {{"SCALETRAIN_MIN_SECONDS", "0"}});
    REQUIRE_MESSAGE(job.wait_for_step(40), job.output());
    kill_agent(job, "SLURM_NODEID=" + node);
    REQUIRE(job.wait_for_end(180.0));
    CHECK_MESSAGE(job.property("JobState") == "COMPLETED", job.output());
    CHECK(job.property("Restarts") == "1");
    check_same_trajectory(job);
  }
}

TEST_CASE("a_job_that_is_signalled_at_its_start_is_put_back") {
  if (!is_there()) return;
  const Job job("slurm-early", two_nodes, two_replicas);
  REQUIRE(wait_until([&] { return job.output().find("2 nodes") != std::string::npos; }, 60.0));
  ask("scancel", {"--batch", "--signal=USR1", job.id()});
  REQUIRE(job.wait_for_end(180.0));
  CHECK_MESSAGE(job.property("JobState") == "COMPLETED", job.output());
  CHECK(job.property("Restarts") == "1");
  check_same_trajectory(job);
}

TEST_CASE("a_job_whose_node_is_lost_starts_again_on_others") {
  if (!is_there()) return;
  const Job job("slurm-bereft", {"--nodes=2"}, two_replicas);
  REQUIRE_MESSAGE(job.wait_for_step(40), job.output());
  testbed().kill_node("n1");
  REQUIRE(job.wait_for_end(240.0));
  CHECK_MESSAGE(job.property("JobState") == "COMPLETED", job.output());
  check_same_trajectory(job);
  testbed().start_node("n1");
}

const Settings three_nodes = {"--nodes=3", "--no-kill"};
const std::vector<std::pair<std::string, std::string>> elastic = {{"SCALETRAIN_ELASTIC", "1"}};

TEST_CASE("an_elastic_job_goes_on_without_a_lost_node") {
  if (!is_there()) return;
  Settings settings = two_replicas;
  settings.emplace_back("supervise={elastic: {min_data: 2}, heartbeat: 10s}");
  const Job job("slurm-elastic", three_nodes, settings, elastic);
  REQUIRE_MESSAGE(job.wait_for_step(40), job.output());
  testbed().kill_node("n2");
  REQUIRE(job.wait_for_end(240.0));
  CHECK_MESSAGE(job.output().find("ended with 0") != std::string::npos, job.output());
  CHECK(job.property("Restarts") == "0");
  CHECK(replicas_of_starts(job) == std::vector<long>{3, 2});
  check_close_losses(job);
  check_no_process_left("slurm-elastic");
  testbed().start_node("n2");
}

TEST_CASE("an_elastic_job_starts_a_lost_agent_again_and_grows_back") {
  if (!is_there()) return;
  Settings settings = two_replicas;
  settings.insert(settings.end(), {"supervise={elastic: {min_data: 2}, heartbeat: 10s}", "train.steps=100000"});
  const Job job("slurm-regrown", three_nodes, settings, elastic);
  REQUIRE_MESSAGE(job.wait_for_step(40), job.output());
  kill_agent(job, "SCALETRAIN_NODE=2");
  const std::vector<long> grown = {3, 2, 3};
  CHECK_MESSAGE(wait_until([&] { return replicas_of_starts(job) == grown; }, 120.0), job.output());
  ask("scancel", {job.id()});
  REQUIRE(job.wait_for_end(60.0));
  check_no_process_left("slurm-regrown");
}

TEST_CASE("a_cancelled_job_saves_and_is_not_put_back") {
  if (!is_there()) return;
  Settings settings = two_replicas;
  settings.emplace_back("train.steps=100000");
  const Job job("slurm-cancelled", two_nodes, settings);
  REQUIRE_MESSAGE(job.wait_for_step(20), job.output());
  ask("scancel", {job.id()});
  REQUIRE(wait_until([&] { return job.output().find("ended with 75") != std::string::npos; }, 60.0));
  REQUIRE(job.wait_for_end(60.0));
  CHECK(job.property("JobState") == "CANCELLED");
  CHECK(job.property("Restarts") == "0");
  const long reached = trajectory_of(job.folder()).last_step();
  CHECK(fs::exists(checkpoint(job.folder(), static_cast<int>(reached))));
  check_no_process_left("slurm-cancelled");
}

}  // namespace scaletrain
