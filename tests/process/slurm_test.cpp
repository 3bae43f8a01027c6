// scripts/slurm/train.sbatch on a real SLURM cluster of virtual nodes (scripts/slurm/testbed.sh): jobs that are
// disturbed end with the losses, to the bit, of one that was not. Needs root; skipped by name where the testbed cannot
// be started. Most of the time is SLURM's, so jobs run side by side, each on nodes of its own, from the first test case
// on; a test case looks at one. What is done to jobs is done by threads, in which no assertion may stand: they throw.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <fstream>
#include <future>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>

#include "ranks.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

const fs::path scripts = fs::path(SCALETRAIN_SOURCE_FOLDER) / "scripts" / "slurm";

constexpr int node_count = 17;

// testbed.sh's own commands.
Ended testbed_script(std::vector<std::string> arguments) {
  return run_program({.executable = scripts / "testbed.sh", .arguments = std::move(arguments)}, 300.0);
}

class Testbed {
 public:
  Testbed() {
    if (!is_root()) return;
    // Not below workspace(): what runs with that path in its command line counts as a process of a run. It ends with
    // this program, also with one that is killed.
    const Ended start =
        testbed_script({"start", folder_.path().string(), std::to_string(node_count), std::to_string(::getpid())});
    if (start.exit_code != 0) problem_ = "the testbed did not start: " + start.errors;
  }
  ~Testbed() {
    if (is_root()) testbed_script({"stop", folder_.path().string()});
  }
  Testbed(const Testbed&) = delete;
  Testbed& operator=(const Testbed&) = delete;

  static bool is_root() { return ::geteuid() == 0; }
  const std::string& problem() const { return problem_; }  // why it could not be started; empty: it was
  std::pair<std::string, std::string> variable() const { return {"SLURM_CONF", (folder_ / "slurm.conf").string()}; }
  void kill_node(const std::string& node) const { testbed_script({"node-down", folder_.path().string(), node}); }
  void start_node(const std::string& node) const { testbed_script({"node-up", folder_.path().string(), node}); }

 private:
  TempFolder folder_;
  std::string problem_;
};

const Testbed& testbed() {
  static const Testbed bed;
  return bed;
}

// A program of SLURM, by name.
std::string ask(const std::string& program, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), program);
  Launch launch{.executable = "/usr/bin/env", .arguments = std::move(arguments)};
  launch.environment.push_back(testbed().variable());
  return run_program(launch, 120.0).output;
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
    const Ended end = run_program(launch, 120.0);
    if (end.exit_code != 0) throw std::runtime_error("sbatch " + run + ": " + end.errors);
    id_ = end.output.substr(0, end.output.find_first_of(";\n"));
  }
  ~Job() { ask("scancel", {id_}); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const std::string& id() const { return id_; }
  fs::path folder() const { return folder_; }
  std::string output() const { return fs::exists(log()) ? read_file(log()) : std::string(); }
  // "JobState", "Restarts", "ExitCode" ... A controller that is busy is asked again.
  std::string property(const std::string& name) const {
    std::string text;
    comes_true([&] { return !(text = ask("scontrol", {"show", "job", "--oneliner", id_})).empty(); }, 60.0);
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
  bool wait_for_step(long step, double seconds = 180.0) const {
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
    std::ifstream comm(process / "comm");
    std::getline(comm, name);
    if (name != "scaletrain") continue;  // a worker: "scaletrain r0"
    std::ifstream in(process / "environ");
    for (std::string found; std::getline(in, found, '\0');)
      if (found == variable) return pid;
  }
  return -1;
}

void kill_agent(const Job& job, const std::string& variable) {
  const pid_t agent = agent_with(job, variable);
  if (agent <= 0) throw std::runtime_error(job.folder().string() + ": no agent with " + variable);
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

// Stands in for the program: says where the run would be, as it does, and then does that.
std::string does(const std::string& name, const std::string& what) {
  const fs::path program = workspace() / name;
  std::ofstream(program) << "#!/bin/bash\n"
                         << "case \"$*\" in *--print-directory) exec " << SCALETRAIN_PROGRAM << " \"$@\" ;; esac\n"
                         << what << "\n";
  fs::permissions(program, fs::perms::owner_all);
  return program.string();
}

// The first node's is the last to end.
std::string ends_with(int code) {
  return does("ends-with-" + std::to_string(code),
              "[ \"$SLURM_PROCID\" != 0 ] || sleep 2; exit " + std::to_string(code));
}

// Leaves with 75, from its second start with a checkpoint behind it.
std::string seldom_saves(const std::string& run) {
  const std::string saved = (layout_folder(run) / "checkpoints" / "step-00000020").string();
  return does("seldom-saves", "if [ \"$SLURM_RESTART_COUNT\" = 1 ]; then mkdir -p " + saved + "; touch " + saved +
                                  "/manifest.json; fi; exit 75");
}

const Settings endless = {"train.steps=1000000"};
const Settings elastic_settings = {"supervise={elastic: {min_data: 2}, heartbeat: 30s}"};
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
  Job stalled{"slurm-stalled",
              with(on_nodes(11, 11), {"--comment=mine"}),
              two_replicas,
              {{"SCALETRAIN", seldom_saves("slurm-stalled")}, {"SCALETRAIN_STALLS", "2"}}};
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
    wait_for_ends({&*requeued, &*first_killed, &*other_killed, &early, &*cancelled, &troubled, &damaged, &stalled},
                  300.0);
  }
};

// Loses nothing but time. SLURM looks at time limits seldom, and the signal may come up to a minute early.
struct Limited {
  Job job{"slurm-limited", with(on_nodes(12, 13), {"--time=00:02:00", "--signal=B:USR1@40"}),
          with(two_replicas, endless)};
  long reached_at = 0;

  Limited() {
    if (job.wait_for_text(was_put_back, 180.0)) reached_at = trajectory_of(job.folder()).last_step();
    job.wait_for_start(180.0);
    job.wait_for_step(reached_at + 20);
    ask("scancel", {job.id()});
    job.wait_for_end(120.0);
  }
};

// An endless one that loses an agent, then for a moment a node.
struct Regrown {
  Job job{"slurm-regrown", with(on_nodes(14, 16), {"--no-kill"}), with(with(two_replicas, elastic_settings), endless),
          elastic};

  Regrown() {
    if (job.wait_for_step(40)) kill_agent(job, "SCALETRAIN_NODE=2");
    const std::size_t starts = wait_until_grown(2);
    testbed().kill_node("n16");
    testbed().start_node("n16");
    wait_until_grown(starts + 2);
    ask("scancel", {"--batch", "--signal=USR1", job.id()});
    job.wait_for_text(was_put_back, 120.0);
    ask("scancel", {job.id()});
    job.wait_for_end(120.0);
  }

 private:
  // How many starts there were then: so many at least, the last with all nodes.
  std::size_t wait_until_grown(std::size_t starts) const {
    std::vector<long> replicas;
    comes_true(
        [&] {
          replicas = replicas_of_starts(job);
          return replicas.size() >= starts && replicas.back() == 3;
        },
        240.0);
    return replicas.size();
  }
};

// Jobs that lose a node, where those of KeptNodes were. Each begins when the one before has lost its own, so that none
// is over by then.
struct LostNodes {
  // Whatever its program does, it never ends by itself nor saves, and SIGTERM alone does not end it.
  static std::string never_ends() {
    return does("never-ends", "trap '' TERM USR1; echo \"runs $SLURM_RESTART_COUNT\"; while :; do sleep 1; done");
  }
  Job swept{"slurm-swept",
            with(on_nodes(12, 12), {"--comment=mine"}),
            two_replicas,
            {{"SCALETRAIN", never_ends()}, {"SCALETRAIN_STALLS", "1"}}};
  std::optional<Job> shrunk, headless, blinked, bereft;

  LostNodes() {
    const Settings elastic_replicas = with(two_replicas, elastic_settings);
    shrunk.emplace("slurm-elastic", with(count_of_nodes(3, 7, 9), {"--no-kill"}), elastic_replicas, elastic);
    lose(*shrunk, 2);
    sweep("");
    headless.emplace("slurm-headless", with(count_of_nodes(3, 3, 6), {"--no-kill"}), elastic_replicas, elastic);
    lose(*headless, 0);
    bereft.emplace("slurm-bereft", count_of_nodes(2, 0, 2), two_replicas);
    lose(*bereft, 1);
    blinked.emplace("slurm-blinked", on_nodes(10, 11), with(two_replicas, {"supervise={heartbeat: 30s}"}),
                    Environment{{"SLURM_WAIT", "5"}});
    lose(*blinked, 1);
    testbed().start_node("n11");
    sweep("1");
    wait_for_ends({&*bereft, &*headless, &*shrunk, &*blinked, &swept}, 300.0);
    for (const std::string& node : lost_)
      if (node != "n11") testbed().start_node(node);
  }

 private:
  void lose(const Job& job, std::size_t index) {
    if (!job.wait_for_step(40) || job.nodes().size() <= index) return;
    lost_.push_back(job.nodes()[index]);
    testbed().kill_node(lost_.back());
  }
  // The number of the job's restarts before is not set in its first start.
  void sweep(const std::string& restarts) {
    comes_true([&] { return swept.is_over() || swept.output().find("runs " + restarts + "\n") != std::string::npos; },
               120.0);
    ask("scontrol", {"requeue", swept.id()});
  }

  std::vector<std::string> lost_;
};

// All of these at once, but that nodes are lost when those who were to keep them have ended.
struct Scenes {
  template <class Scene>
  using Played = std::shared_future<std::unique_ptr<const Scene>>;
  template <class Scene>
  static std::unique_ptr<const Scene> play() {
    return std::make_unique<const Scene>();
  }

  Played<Limited> limited = std::async(std::launch::async, play<Limited>).share();
  Played<Regrown> regrown = std::async(std::launch::async, play<Regrown>).share();
  Played<KeptNodes> kept = std::async(std::launch::async, play<KeptNodes>).share();
  Played<LostNodes> lost = std::async(std::launch::async, [kept = kept] {
                             kept.wait();
                             return play<LostNodes>();
                           }).share();
};
const Scenes& scenes() {
  static const Scenes all;
  return all;
}
const KeptNodes& kept_nodes() {
  return *scenes().kept.get();
}
const LostNodes& lost_nodes() {
  return *scenes().lost.get();
}

bool is_there() {
  if (!Testbed::is_root()) {
    MESSAGE("skipped: only root can start a SLURM testbed");
    return false;
  }
  REQUIRE_MESSAGE(testbed().problem().empty(), testbed().problem());
  scenes();
  return true;
}

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

TEST_CASE("a_job_whose_starts_bring_it_no_further_is_put_back_as_often_as_it_is_allowed_to_be") {
  if (!is_there()) return;
  const Job& job = kept_nodes().stalled;
  CHECK_MESSAGE(job.property("JobState") == "FAILED", job.output());
  CHECK(job.property("ExitCode") == "6:0");
  // The first start leaves no checkpoint, the second one, the two after it no other.
  CHECK(job.property("Restarts") == "3");
  CHECK_MESSAGE(job.output().find("2 starts in a row have left no new checkpoint (the newest: step-00000020") !=
                    std::string::npos,
                job.output());
  CHECK_MESSAGE(job.output().find("give it more --time") != std::string::npos, job.output());
  CHECK(job.property("Comment") == "mine[starts");
}

TEST_CASE("starts_that_are_ended_before_they_can_count_themselves_are_counted_by_the_next") {
  if (!is_there()) return;
  const Job& job = lost_nodes().swept;
  CHECK_MESSAGE(job.property("JobState") == "FAILED", job.output());
  CHECK(job.property("ExitCode") == "6:0");
  CHECK(job.property("Restarts") == "2");
  CHECK_MESSAGE(job.output().find("start 3: 1 starts in a row have left no new checkpoint (the newest: none)") !=
                    std::string::npos,
                job.output());
  check_no_process_left("slurm-swept");
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
  const Limited& limited = *scenes().limited.get();
  const Job& job = limited.job;
  CHECK_MESSAGE(limited.reached_at > 0, job.output());
  CHECK(fs::exists(checkpoint(job.folder(), static_cast<int>(limited.reached_at))));
  const Trajectory found = trajectory_of(job.folder());
  CHECK_MESSAGE(found.last_step() >= limited.reached_at + 20, job.output());
  CHECK(job.property("Restarts") == "1");
  for (const auto& step : undisturbed().steps) {
    const auto other = found.steps.find(step.first);
    if (other != found.steps.end()) CHECK(other->second == step.second);
  }
}

// An agent that was killed, and one whose node was gone and back before SLURM noticed, are started again.
TEST_CASE("an_elastic_job_grows_back_and_saves_when_it_is_signalled") {
  if (!is_there()) return;
  const Job& job = scenes().regrown.get()->job;
  const std::vector<long> replicas = replicas_of_starts(job);
  const std::vector<long> all = {3, 2, 3, 2, 3};
  // The agent may be back before the run has gone on without it; a node that went twice is not, for a minute.
  const std::vector<long> quickly_back = {3, 3, 2, 3};
  CHECK_MESSAGE((replicas == all || replicas == quickly_back), job.output());
  CHECK_MESSAGE(job.output().find(was_put_back) != std::string::npos, job.output());
  check_last_step_is_saved(job);
  check_no_process_left("slurm-regrown");
}

namespace {

// Daemons of a testbed, and a job's.
std::vector<pid_t> daemons_of(const fs::path& folder) {
  std::vector<pid_t> pids;
  for (const char* const name : {"slurmctld.pid", "slurmd-n0.pid", "munge/pid"}) {
    pids.push_back(std::stoi(read_file(folder / name)));
    CHECK_MESSAGE(is_alive(pids.back()), name);
  }
  return pids;
}

std::string ports_of(const fs::path& folder) {
  const std::string text = read_file(folder / "slurm.conf");
  const std::size_t at = text.find("SlurmctldPort=");
  return text.substr(at, text.find('\n', at) - at);
}

bool all_end(const std::vector<pid_t>& pids) {
  return comes_true([&] { return std::none_of(pids.begin(), pids.end(), is_alive); }, 60.0);
}

}  // namespace

// As after a test program that was killed: what it has left, a job included, disturbs no other testbed, and goes.
TEST_CASE("a_testbed_ends_with_its_killed_owner_and_another_starts_beside_it") {
  if (!is_there()) return;
  const TempFolder old_folder;
  const TempFolder new_folder;
  const std::pair<std::string, std::string> same_ports = {"TESTBED_PORT", "24000"};
  const std::string bed = (scripts / "testbed.sh").string();
  const std::string job_mark = "3600." + std::to_string(::getpid());
  const std::string sleeper = std::string("sleep\0", 6) + job_mark;  // as /proc shows its command line
  Program owner(
      {.executable = "/bin/bash",
       .arguments = {"-c",
                     "eval \"$(\"$0\" start \"$1\" 1 $$)\" && sbatch --output=/dev/null --wrap \"exec sleep $2\" && "
                     "while :; do sleep 1; done",
                     bed, old_folder.path().string(), job_mark},
       .environment = {same_ports}});
  REQUIRE_MESSAGE(comes_true([&] { return !processes_with(sleeper).empty(); }, 120.0), owner.errors());
  const Ended other = run_program(
      {.executable = bed, .arguments = {"start", new_folder.path().string(), "1"}, .environment = {same_ports}}, 300.0);
  CHECK_MESSAGE(other.exit_code == 0, other.errors);
  CHECK(ports_of(old_folder.path()) != ports_of(new_folder.path()));
  std::vector<pid_t> old_ones = daemons_of(old_folder.path());
  const std::vector<pid_t> new_ones = daemons_of(new_folder.path());
  for (const pid_t pid : processes_with(sleeper)) old_ones.push_back(pid);
  owner.signal(SIGKILL);
  CHECK(all_end(old_ones));
  CHECK(processes_with(sleeper).empty());
  CHECK(std::all_of(new_ones.begin(), new_ones.end(), is_alive));
  CHECK(testbed_script({"stop", new_folder.path().string()}).exit_code == 0);
  CHECK(all_end(new_ones));
}

}  // namespace scaletrain
