// scripts/slurm/train.sbatch on a real SLURM cluster of virtual nodes (scripts/slurm/testbed.sh): jobs that are
// disturbed end with the losses, to the bit, of one that was not. Needs root; skipped by name where the testbed cannot
// be started. Most of the time is SLURM's, so jobs run side by side, each on nodes of its own; a test case looks at
// one.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "ranks.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

const fs::path scripts = fs::path(SCALETRAIN_SOURCE_FOLDER) / "scripts" / "slurm";

constexpr int node_count = 14;

class Testbed {
 public:
  Testbed() {
    if (!is_root()) return;
    // Not below workspace(): what runs with that path in its command line counts as a process of a run.
    const Ended start = script({"start", folder_.path().string(), std::to_string(node_count)});
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

// Looks seldom: what is waited for here takes seconds, and the processors are the jobs'.
template <typename Condition>
bool comes_true(Condition condition, double seconds) {
  const double end = test_clock() + seconds;
  while (!condition()) {
    if (test_clock() > end) return false;
    sleep_for(0.1);
  }
  return true;
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
    launch.environment.emplace_back("SCALETRAIN", SCALETRAIN_PROGRAM);
    launch.environment.insert(launch.environment.end(), environment.begin(), environment.end());
    launch.environment.push_back(testbed().variable());
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
  // Those that it had last, the batch script's first.
  std::vector<std::string> nodes() const {
    std::istringstream lines(ask("scontrol", {"show", "hostnames", property("NodeList")}));
    std::vector<std::string> names;
    for (std::string line; std::getline(lines, line);) names.push_back(line);
    return names;
  }
  bool wait_for_step(long step, double seconds = 90.0) const {
    return comes_true([&] { return newest_step(folder_) >= step; }, seconds);
  }
  bool wait_for_text(const std::string& text, double seconds) const {
    return comes_true([&] { return output().find(text) != std::string::npos; }, seconds);
  }
  bool wait_for_end(double seconds) const {
    return comes_true([&] { return is_over(); }, seconds);
  }
  bool wait_for_start(double seconds) const {
    return comes_true([&] { return state() == "RUNNING"; }, seconds);
  }
  bool is_over() const {
    const std::vector<std::string> ends = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"};
    return std::find(ends.begin(), ends.end(), state()) != ends.end();
  }

 private:
  // SLURM lets two minutes pass before a job that was put back may start again; here it need not wait.
  std::string state() const {
    std::string found = property("JobState");
    if (found == "PENDING" && property("Reason") == "BeginTime")
      ask("scontrol", {"update", "JobId=" + id_, "StartTime=now"});
    return found;
  }
  fs::path log() const { return folder_.string() + ".out"; }

  fs::path folder_;
  std::string id_;
};

void wait_for_ends(const std::vector<const Job*>& jobs, double seconds) {
  comes_true(
      [&] { return std::count_if(jobs.begin(), jobs.end(), [](const Job* job) { return !job->is_over(); }) == 0; },
      seconds);
}

constexpr int slurm_steps = 800;  // several seconds, so that there is a middle
Settings on_nodes(int first, int last) {
  Settings options = {"--nodes=" + std::to_string(last - first + 1), "--nodelist="};
  for (int node = first; node <= last; ++node) options.back() += (node > first ? ",n" : "n") + std::to_string(node);
  return options;
}
// Another may take the place of one that is lost.
Settings count_of_nodes(int count, int first, int last) {
  Settings options = {"--nodes=" + std::to_string(count), "--exclude="};
  for (int node = 0; node < node_count; ++node)
    if (node < first || node > last)
      options.back() += (options.back().back() == '=' ? "n" : ",n") + std::to_string(node);
  return options;
}
Settings with(Settings settings, const Settings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

// A constant learning rate: a step's loss does not depend on how many steps there will be. A small one: the roundings
// of other layouts grow apart slowly.
const Settings two_replicas = {"parallel.data=auto",
                               "train.steps=" + std::to_string(slurm_steps),
                               "train.lr_schedule={type: constant, warmup: 10}",
                               "train.optimizer.learning_rate=1e-4",
                               "evaluate.every=100",
                               "checkpoint={every: 20, keep: 100}"};

// A run of two nodes that nothing disturbed.
const Trajectory& undisturbed() {
  static const Trajectory trajectory = [] {
    const Job job("slurm-whole", on_nodes(0, 1), two_replicas);
    REQUIRE(job.wait_for_end(180.0));
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
  CHECK_MESSAGE(agent > 0, variable);
  if (agent > 0) ::kill(agent, SIGKILL);
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

// Stands in for the program; the first node's is the last to end.
std::string ends_with(int code) {
  const fs::path program = workspace() / ("ends-with-" + std::to_string(code));
  std::ofstream(program) << "#!/bin/sh\n[ \"$SLURM_PROCID\" != 0 ] || sleep 2\nexit " << code << "\n";
  fs::permissions(program, fs::perms::owner_all);
  return program.string();
}

const Settings endless = {"train.steps=1000000"};
const Settings elastic_settings = {"supervise={elastic: {min_data: 2}, heartbeat: 10s}"};
const std::string was_put_back = "after signal USR1; back into the queue";
using Environment = std::vector<std::pair<std::string, std::string>>;
const Environment elastic = {{"SCALETRAIN_ELASTIC", "1"}};

// Jobs that keep their nodes. What happens to one in its middle happens before the next begins, so that none is over by
// then.
struct KeptNodes {
  Job early{"slurm-early", on_nodes(6, 7), two_replicas};
  Job troubled{"slurm-troubled",
               with(on_nodes(10, 10), {"--comment=mine"}),
               two_replicas,
               {{"SCALETRAIN", ends_with(4)}, {"SCALETRAIN_TROUBLES", "1"}}};
  // On two: srun ends the others when one has left.
  Job damaged{"slurm-damaged", on_nodes(12, 13), two_replicas, {{"SCALETRAIN", ends_with(3)}}};
  std::optional<Job> cancelled, requeued, first_killed, other_killed;

  KeptNodes() {
    early.wait_for_text("2 nodes", 60.0);
    ask("scancel", {"--batch", "--signal=USR1", early.id()});
    cancelled.emplace("slurm-cancelled", on_nodes(8, 9), with(two_replicas, endless));
    cancelled->wait_for_step(20);
    ask("scancel", {cancelled->id()});
    requeued.emplace("slurm-requeued", on_nodes(0, 1), two_replicas);
    requeued->wait_for_step(60);
    ask("scontrol", {"requeue", requeued->id()});
    first_killed.emplace("slurm-killed-0", on_nodes(2, 3), two_replicas);
    first_killed->wait_for_step(40);
    kill_agent(*first_killed, "SLURM_NODEID=0");
    other_killed.emplace("slurm-killed-1", on_nodes(4, 5), two_replicas);
    other_killed->wait_for_step(40);
    kill_agent(*other_killed, "SLURM_NODEID=1");
    wait_for_ends({&*requeued, &*first_killed, &*other_killed, &early, &*cancelled, &troubled, &damaged}, 240.0);
  }
};
const KeptNodes& kept_nodes() {
  static const KeptNodes jobs;
  return jobs;
}

// Jobs that lose one. Each begins when the one before has lost its own, so that none is over by then.
struct LostNodes {
  // Loses nothing but time. SLURM looks at time limits seldom, and the signal may come up to a minute early.
  Job limited{"slurm-limited", with(on_nodes(12, 13), {"--time=00:02:00", "--signal=B:USR1@40"}),
              with(two_replicas, endless)};
  std::optional<Job> shrunk, headless, blinked, bereft;
  long limit_reached_at = 0;

  LostNodes() {
    const Settings elastic_replicas = with(two_replicas, elastic_settings);
    shrunk.emplace("slurm-elastic", with(count_of_nodes(3, 7, 9), {"--no-kill"}), elastic_replicas, elastic);
    lose(*shrunk, 2);
    headless.emplace("slurm-headless", with(count_of_nodes(3, 3, 6), {"--no-kill"}), elastic_replicas, elastic);
    lose(*headless, 0);
    bereft.emplace("slurm-bereft", count_of_nodes(2, 0, 2), two_replicas);
    lose(*bereft, 1);
    blinked.emplace("slurm-blinked", on_nodes(10, 11), with(two_replicas, {"supervise={heartbeat: 10s}"}),
                    Environment{{"SLURM_WAIT", "5"}});
    lose(*blinked, 1);
    testbed().start_node("n11");
    wait_for_ends({&*bereft, &*headless, &*shrunk, &*blinked}, 240.0);
    for (const std::string& node : lost_)
      if (node != "n11") testbed().start_node(node);
    if (limited.wait_for_text(was_put_back, 120.0)) limit_reached_at = trajectory_of(limited.folder()).last_step();
    limited.wait_for_start(60.0);
    limited.wait_for_step(limit_reached_at + 20);
    ask("scancel", {limited.id()});
    limited.wait_for_end(60.0);
  }

 private:
  void lose(const Job& job, std::size_t index) {
    if (!job.wait_for_step(40) || job.nodes().size() <= index) return;
    lost_.push_back(job.nodes()[index]);
    testbed().kill_node(lost_.back());
  }

  std::vector<std::string> lost_;
};
const LostNodes& lost_nodes() {
  static const LostNodes jobs;
  return jobs;
}

// An endless one that loses an agent, then for a moment a node.
struct Regrown {
  Job job{"slurm-regrown", with(on_nodes(0, 2), {"--no-kill"}), with(with(two_replicas, elastic_settings), endless),
          elastic};

  Regrown() {
    if (job.wait_for_step(40)) kill_agent(job, "SCALETRAIN_NODE=2");
    wait_for_replicas({3, 2, 3});
    testbed().kill_node("n2");
    testbed().start_node("n2");
    wait_for_replicas({3, 2, 3, 2, 3});
    ask("scancel", {"--batch", "--signal=USR1", job.id()});
    job.wait_for_text(was_put_back, 60.0);
    ask("scancel", {job.id()});
    job.wait_for_end(60.0);
  }

 private:
  void wait_for_replicas(const std::vector<long>& replicas) const {
    comes_true([&] { return replicas_of_starts(job) == replicas; }, 120.0);
  }
};

void check_came_back_once(const Job& job) {
  CHECK_MESSAGE(job.property("JobState") == "COMPLETED", job.output());
  CHECK_MESSAGE(job.property("Restarts") == "1", job.output());
}

void check_last_step_is_saved(const Job& job) {
  const long reached = trajectory_of(job.folder()).last_step();
  CHECK(fs::exists(checkpoint(job.folder(), static_cast<int>(reached))));
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
  check_came_back_once(*kept_nodes().requeued);
  check_same_trajectory(*kept_nodes().requeued);
}

TEST_CASE("a_job_whose_agent_is_killed_is_put_back") {
  if (!is_there()) return;
  for (const Job* job : {&*kept_nodes().first_killed, &*kept_nodes().other_killed}) {
    check_came_back_once(*job);
    check_same_trajectory(*job);
  }
}

TEST_CASE("a_job_that_is_signalled_at_its_start_is_put_back") {
  if (!is_there()) return;
  check_came_back_once(kept_nodes().early);
  check_same_trajectory(kept_nodes().early);
}

TEST_CASE("a_cancelled_job_saves_and_is_not_put_back") {
  if (!is_there()) return;
  const Job& job = *kept_nodes().cancelled;
  CHECK_MESSAGE(job.output().find("ended with 75") != std::string::npos, job.output());
  CHECK(job.property("JobState") == "CANCELLED");
  CHECK(job.property("Restarts") == "0");
  check_last_step_is_saved(job);
  check_no_process_left("slurm-cancelled");
}

TEST_CASE("a_job_in_trouble_is_put_back_as_often_as_it_is_allowed_to_be") {
  if (!is_there()) return;
  const Job& job = kept_nodes().troubled;
  CHECK_MESSAGE(job.property("JobState") == "FAILED", job.output());
  CHECK(job.property("ExitCode") == "4:0");
  CHECK(job.property("Restarts") == "1");
  CHECK_MESSAGE(job.output().find("ended with 4, trouble 1 of 1; back into the queue") != std::string::npos,
                job.output());
  CHECK_MESSAGE(job.output().find("start 2 in a row that ended in trouble") != std::string::npos, job.output());
  CHECK(job.property("Comment") == "mine[starts");
}

TEST_CASE("a_job_whose_data_is_damaged_stays_ended") {
  if (!is_there()) return;
  const Job& job = kept_nodes().damaged;
  CHECK_MESSAGE(job.property("JobState") == "FAILED", job.output());
  CHECK(job.property("ExitCode") == "3:0");
  CHECK(job.property("Restarts") == "0");
}

TEST_CASE("a_job_whose_node_is_lost_starts_again_on_others") {
  if (!is_there()) return;
  CHECK_MESSAGE(lost_nodes().bereft->property("JobState") == "COMPLETED", lost_nodes().bereft->output());
  check_same_trajectory(*lost_nodes().bereft);
}

TEST_CASE("a_job_whose_node_is_gone_and_back_before_slurm_notices_is_put_back") {
  if (!is_there()) return;
  check_came_back_once(*lost_nodes().blinked);
  check_same_trajectory(*lost_nodes().blinked);
}

TEST_CASE("an_elastic_job_goes_on_without_a_lost_node") {
  if (!is_there()) return;
  const Job& job = *lost_nodes().shrunk;
  CHECK_MESSAGE(job.output().find("ended with 0") != std::string::npos, job.output());
  CHECK(job.property("Restarts") == "0");
  CHECK(replicas_of_starts(job) == std::vector<long>{3, 2});
  check_close_losses(job);
  check_no_process_left("slurm-elastic");
}

TEST_CASE("an_elastic_job_whose_first_node_is_lost_is_put_back_once_by_another") {
  if (!is_there()) return;
  const Job& job = *lost_nodes().headless;
  CHECK_MESSAGE(job.output().find("puts the job back into the queue") != std::string::npos, job.output());
  check_came_back_once(job);
  CHECK(replicas_of_starts(job) == std::vector<long>{3, 3});
  check_close_losses(job);
  check_no_process_left("slurm-headless");
}

TEST_CASE("a_job_that_reaches_its_time_limit_saves_and_puts_itself_back") {
  if (!is_there()) return;
  const Job& job = lost_nodes().limited;
  CHECK_MESSAGE(lost_nodes().limit_reached_at > 0, job.output());
  CHECK(fs::exists(checkpoint(job.folder(), static_cast<int>(lost_nodes().limit_reached_at))));
  const Trajectory found = trajectory_of(job.folder());
  CHECK_MESSAGE(found.last_step() >= lost_nodes().limit_reached_at + 20, job.output());
  CHECK(job.property("Restarts") == "1");
  for (const auto& step : undisturbed().steps) {
    const auto other = found.steps.find(step.first);
    if (other != found.steps.end()) CHECK(other->second == step.second);
  }
}

// An agent that was killed, and one whose node was gone and back before SLURM noticed, are started again.
TEST_CASE("an_elastic_job_grows_back_and_saves_when_it_is_signalled") {
  if (!is_there()) return;
  const Regrown regrown;
  const Job& job = regrown.job;
  const std::vector<long> all = {3, 2, 3, 2, 3};
  CHECK_MESSAGE(replicas_of_starts(job) == all, job.output());
  CHECK_MESSAGE(job.output().find(was_put_back) != std::string::npos, job.output());
  check_last_step_is_saved(job);
  check_no_process_left("slurm-regrown");
}

}  // namespace scaletrain
