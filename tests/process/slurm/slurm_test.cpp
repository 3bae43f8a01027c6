// scripts/slurm/train.sbatch on a real SLURM cluster of virtual nodes: jobs that are disturbed (slurm_scenes.h) end
// with the losses, to the bit, of one that was not. Needs root; skipped by name where the testbed cannot be started.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <string>

#include "slurm_scenes.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

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

const KeptNodes& kept_nodes() {
  return *scenes().kept.get();
}
const LostNodes& lost_nodes() {
  return *scenes().lost.get();
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
  const std::string bed = (slurm_scripts / "testbed.sh").string();
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
