// One host's agent with several ranks: whatever is done to one of them, the run ends as if nothing had happened.
#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <vector>

#include "ranks.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

constexpr int steps = 200;

// Two replicas; a checkpoint now and then.
Settings two_ranks(const Settings& more = {}) {
  Settings settings = {"parallel.data=2", "train.steps=" + std::to_string(steps), "checkpoint={every: 20, keep: 100}",
                       "evaluate={every: 0}"};
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

// Of the same layout, which nothing disturbed: the same to the bit.
const Trajectory& undisturbed() {
  static const Trajectory trajectory = [] {
    const Ended end = run_program(layout_launch("supervised-alone", two_ranks()), ranks_patience);
    REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
    return trajectory_of(layout_folder("supervised-alone"));
  }();
  return trajectory;
}

void check_as_undisturbed(const std::string& run) {
  const Trajectory found = trajectory_of(layout_folder(run));
  CHECK(found.last_step() == steps);
  CHECK(found.steps == undisturbed().steps);
  check_no_process_left(run);
}

std::vector<pid_t> workers_of(Program& agent, std::size_t world) {
  std::vector<pid_t> workers = workers_by_rank(agent, world);
  REQUIRE_MESSAGE(workers.size() == world, agent.errors());
  return workers;
}

void wait_for_step(Program& agent, const std::string& run, long step) {
  REQUIRE_MESSAGE(reaches_step(agent, run, step), agent.errors());
}

std::string rank_log(const std::string& run, int rank) {
  return read_file(layout_folder(run) / "logs" / ("rank-0000" + std::to_string(rank) + ".log"));
}

// The same command again, until the run has ended.
void go_on(const std::string& run, const Settings& settings) {
  const Ended end = run_program(layout_launch(run, settings), ranks_patience);
  CHECK_MESSAGE(end.exit_code == 0, end.errors);
}

// A job whose processes all stand still for longer than a wait for another rank may last, while other tests are done.
class SuspendedJob {
 public:
  static constexpr const char* run = "suspended-job";

  SuspendedJob() : agent_(layout_launch(run, two_ranks({"supervise.heartbeat=2s"}))) {
    wait_for_step(agent_, run, 25);
    ranks_ = workers_of(agent_, 2);
    // So that rank 0 is waiting for rank 1.
    ::kill(ranks_[1], SIGSTOP);
    sleep_for(heartbeat / 4);
    ::kill(ranks_[0], SIGSTOP);
    agent_.signal(SIGSTOP);
    since_ = test_clock();
  }

  Program& resume() {
    constexpr double deadline = 10 * heartbeat;
    sleep_for(std::max(0.0, since_ + deadline + 2.0 - test_clock()));
    agent_.signal(SIGCONT);
    for (const pid_t rank : ranks_) ::kill(rank, SIGCONT);
    return agent_;
  }

 private:
  static constexpr double heartbeat = 2.0;

  Program agent_;
  std::vector<pid_t> ranks_{};
  double since_ = 0.0;
};

SuspendedJob& suspended_job() {
  static SuspendedJob job;
  return job;
}

}  // namespace

TEST_CASE("a job is suspended as a whole, to be resumed by the last test") {
  suspended_job();
}

TEST_CASE("a killed rank is named and the run goes on from its checkpoint to the same losses") {
  Program agent(layout_launch("killed-rank", two_ranks()));
  wait_for_step(agent, "killed-rank", 25);
  ::kill(workers_of(agent, 2)[1], SIGKILL);
  const Ended& end = agent.wait(ranks_patience);
  CHECK_MESSAGE(end.exit_code == 0, end.errors);
  CHECK(end.says("rank 1: worker"));
  CHECK(end.says("killed by signal 9"));
  check_as_undisturbed("killed-rank");
}

TEST_CASE("a stopped rank is named with what its peers wait in, all report, and the run goes on") {
  const Settings settings = two_ranks({"supervise.heartbeat=3s"});
  Program agent(layout_launch("stopped-rank", settings));
  wait_for_step(agent, "stopped-rank", 25);
  ::kill(workers_of(agent, 2)[1], SIGSTOP);
  const Ended& end = agent.wait(ranks_patience);
  CHECK_MESSAGE(end.exit_code == 0, end.errors);
  CHECK_MESSAGE(end.says("rank 1: worker"), end.errors);
  CHECK_MESSAGE(end.says("is stopped as a whole"), end.errors);
  CHECK_MESSAGE(end.says("rank 0 waits in group data (ranks 0, 1): "), end.errors);
  const std::string waiting = rank_log("stopped-rank", 0);
  CAPTURE(waiting);
  CHECK(waiting.find("taken for hung by the agent: rank 0, step ") != std::string::npos);
  CHECK(waiting.find("in group data (ranks 0, 1): ") != std::string::npos);
  CHECK(waiting.find(", main): state") != std::string::npos);
  // A function of ours on the main thread's stack.
  CHECK(waiting.find("scaletrain") != std::string::npos);
  CHECK(rank_log("stopped-rank", 1).find("taken for hung by the agent: rank 1") != std::string::npos);
  check_as_undisturbed("stopped-rank");
}

TEST_CASE("a signal to one rank alone has all save the same step and leave") {
  for (const int number : {SIGTERM, SIGUSR1}) {
    CAPTURE(number);
    const std::string run = "one-told-" + std::to_string(number);
    {
      Program agent(layout_launch(run, two_ranks()));
      wait_for_step(agent, run, 25);
      ::kill(workers_of(agent, 2)[1], number);
      const Ended& end = agent.wait(ranks_patience);
      CHECK_MESSAGE(end.exit_code == 75, end.errors);
    }
    const auto names = checkpoint_names(layout_folder(run));
    REQUIRE_FALSE(names.empty());
    CHECK(trajectory_of(layout_folder(run)).last_step() >= 25);
    const Ended verified = workspace().run({"checkpoint", "verify", layout_folder(run).string()});
    CHECK_MESSAGE(verified.exit_code == 0, verified.errors);
    go_on(run, two_ranks());
    check_as_undisturbed(run);
  }
}

TEST_CASE("further signals to all while the last checkpoint is saved change nothing") {
  const std::string run = "told-again";
  {
    Program agent(layout_launch(run, two_ranks()));
    wait_for_step(agent, run, 25);
    const std::vector<pid_t> workers = workers_of(agent, 2);
    agent.signal(SIGTERM);
    for (int i = 0; i < 100 && agent.running(); ++i) {
      for (const pid_t worker : workers) ::kill(worker, i % 2 == 0 ? SIGTERM : SIGUSR1);
      agent.signal(SIGTERM);
      sleep_for(0.005);
    }
    const Ended& end = agent.wait(ranks_patience);
    CHECK_MESSAGE(end.exit_code == 75, end.errors);
  }
  const Ended verified = workspace().run({"checkpoint", "verify", layout_folder(run).string()});
  CHECK_MESSAGE(verified.exit_code == 0, verified.errors);
  go_on(run, two_ranks());
  check_as_undisturbed(run);
}

TEST_CASE("eight ranks end with their killed agent, and the next start resumes") {
  const std::string run = "killed-agent";
  const Settings settings = {"parallel.data=2", "parallel.tensor=2", "parallel.pipeline=2"};
  {
    Program agent(layout_launch(run, settings));
    REQUIRE(wait_until([&] { return !checkpoint_names(layout_folder(run)).empty() || !agent.running(); }));
    workers_of(agent, 8);
    agent.signal(SIGKILL);
    agent.wait(ranks_patience);
    check_no_process_left(run);
  }
  const Ended end = run_program(layout_launch(run, settings), ranks_patience);
  CHECK_MESSAGE(end.exit_code == 0, end.errors);
  CHECK_MESSAGE(end.says("resuming from"), end.errors);
  check_same_losses(run);
  check_no_process_left(run);
}

TEST_CASE("a rank that is slow is warned about and left alone") {
  const std::string run = "slow-rank";
  Program agent(layout_launch(run, two_ranks({"train.steps=1000000", "checkpoint={every: 100000, keep: 3}"})));
  wait_for_step(agent, run, 5);
  const pid_t slow = workers_of(agent, 2)[1];
  const fs::path log = layout_folder(run) / "logs" / "agent-00.log";
  // Most of the time it is not running. It takes two windows of five seconds.
  const bool warned = wait_until(
      [&] {
        ::kill(slow, SIGSTOP);
        sleep_for(0.06);
        ::kill(slow, SIGCONT);
        sleep_for(0.01);
        return read_file(log).find("warning rank 1 is slow") != std::string::npos || !agent.running();
      },
      ranks_patience);
  CHECK(warned);
  CHECK_MESSAGE(agent.running(), agent.errors());
  // In a list of processes it is found by the program's name and its rank.
  CHECK(read_file(fs::path("/proc") / std::to_string(slow) / "comm") == "scaletrain r1\n");
  CHECK(read_file(fs::path("/proc") / std::to_string(slow) / "cmdline").find("/scaletrain") != std::string::npos);
  agent.signal(SIGTERM);
  CHECK(agent.wait(ranks_patience).exit_code == 75);
  CHECK(read_file(log).find("restart 1 of") == std::string::npos);
  check_no_process_left(run);
}

TEST_CASE("a rank that runs out of memory ends the run with 3 and the plan of its memory, without a restart") {
  const std::string run = "out-of-memory";
  Launch launch = layout_launch(run, {"model.hidden=2048", "model.heads=16", "model.ffn_hidden=8192"});
  std::vector<std::string> arguments = {"-c", "ulimit -v 2000000; exec \"$0\" \"$@\"", launch.executable.string()};
  arguments.insert(arguments.end(), launch.arguments.begin(), launch.arguments.end());
  launch.executable = "/bin/sh";
  launch.arguments = arguments;
  const Ended end = run_program(launch, ranks_patience);
  CHECK_MESSAGE(end.exit_code == 3, end.errors);
  CHECK_MESSAGE(end.says("out of memory"), end.errors);
  CHECK_MESSAGE(end.says("Reduce train.micro_batch"), end.errors);
  CHECK_MESSAGE(end.says("ulimit -v gives each process 2000000 KiB"), end.errors);
  CHECK_FALSE(end.says("restart 1 of"));
  check_no_process_left(run);
}

TEST_CASE("a job that is suspended as a whole for longer than any deadline goes on without a restart") {
  const Ended& end = suspended_job().resume().wait(ranks_patience);
  CHECK_MESSAGE(end.exit_code == 0, end.errors);
  CHECK_MESSAGE(!end.says("restart 1 of"), end.errors);
  check_as_undisturbed(SuspendedJob::run);
}

}  // namespace scaletrain
