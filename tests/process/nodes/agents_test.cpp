// Several agents, one per node: all on this host, started by hand as SLURM would.
#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <set>

#include "agents.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

const std::vector<int> both_finished = {0, 0};
const std::vector<int> both_interrupted = {75, 75};
const std::vector<int> first_interrupted = {75, -1};
const std::vector<int> second_interrupted = {-1, 75};

// Long enough that something can happen on the way.
const Settings nodes_of_two_ranks = {"parallel.data=2", "train.steps=300", "checkpoint={every: 20, keep: 100}",
                                     "evaluate.every=50"};

const Trajectory& undisturbed_two() {
  static const Trajectory trajectory = [] {
    const Ended end = run_as_one_agent(2, "two-undisturbed", nodes_of_two_ranks);
    REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
    return trajectory_of(layout_folder("two-undisturbed"));
  }();
  return trajectory;
}

// Of these, each test looks at one: what it does once the lease of an agent has run out.
Agents& disturbed_agents(const std::string& run) {
  static std::map<std::string, Agents> runs =
      disturbed_runs(2, nodes_of_two_ranks, 25,
                     {{.run = "agent-killed", .node = 1, .signal = SIGKILL},
                      {.run = "agent-stopped", .node = 1, .signal = SIGSTOP, .is_for_workers = true},
                      {.run = "coordinator-killed", .node = 0, .signal = SIGKILL},
                      {.run = "coordinator-stopped", .node = 0, .signal = SIGSTOP}});
  return runs.at(run);
}

void check_same_bits(const std::string& run, const Trajectory& expected) {
  const Trajectory found = trajectory_of(layout_folder(run));
  CHECK(found.steps == expected.steps);
  CHECK(found.evaluations == expected.evaluations);
}

}  // namespace

TEST_CASE("agents_of_two_nodes_train_as_one_agent_does") {
  Agents agents(2, "two", nodes_of_two_ranks);
  CHECK_MESSAGE(agents.wait() == both_finished, agents.errors());
  check_same_bits("two", undisturbed_two());
  check_nothing_left("two");
  CHECK(fs::exists(layout_folder("two") / "logs" / "agent-00.log"));
  CHECK(fs::exists(layout_folder("two") / "logs" / "agent-01.log"));
  // Node 0 tells what happens, the other is silent.
  CHECK(agents.node(0).errors().find("2 ranks on nodes 0, 1") != std::string::npos);
  CHECK(agents.node(1).errors().empty());

  Agents again(2, "two", nodes_of_two_ranks);
  CHECK_MESSAGE(again.wait() == both_finished, again.errors());
  CHECK(again.node(0).errors().find("already complete") != std::string::npos);
}

TEST_CASE("ranks_of_several_dimensions_are_spread_over_nodes_and_data_auto_is_what_they_leave") {
  const Settings settings = {"parallel.data=auto", "parallel.tensor=2", "launch.ranks_per_node=2"};
  Agents agents(2, "spread", settings);
  CHECK_MESSAGE(agents.wait() == both_finished, agents.errors());
  check_same_losses("spread");
  CHECK(agents.node(0).errors().find("4 ranks on nodes 0, 1, 2 replicas") != std::string::npos);
  Agents stage_each(2, "stages", {"parallel.data=1", "parallel.pipeline=2"});
  CHECK_MESSAGE(stage_each.wait() == both_finished, stage_each.errors());
  check_same_losses("stages");
}

TEST_CASE("what_does_not_fit_the_nodes_is_refused_by_all_and_explained_by_node_0") {
  Agents agents(2, "uneven", {"parallel.data=3", "train.global_batch=6"});
  CHECK(agents.wait() == std::vector<int>{2, 2});
  CHECK(agents.node(0).errors().find("2 nodes do not divide") != std::string::npos);
  CHECK_MESSAGE(agents.node(1).errors().size() < agents.node(0).errors().size() + 200, agents.errors());
  CHECK_FALSE(fs::exists(layout_folder("uneven")));
}

TEST_CASE("an_agent_with_another_config_is_refused_naming_node_and_key") {
  Agents agents(2);
  agents.start(0, "unlike-nodes", {"parallel.data=2"});
  agents.start(1, "unlike-nodes", {"parallel.data=2", "train.optimizer.learning_rate=0.5"});
  CHECK(agents.wait() == std::vector<int>{2, 2});
  CHECK_MESSAGE(agents.node(0).errors().find("node 1 was started with another config than node 0: "
                                             "train.optimizer.learning_rate: 0.5 here") != std::string::npos,
                agents.errors());
}

TEST_CASE("an_agent_of_another_build_is_refused_naming_node_and_build") {
  const fs::path other = workspace() / "another-build";
  fs::copy_file(SCALETRAIN_PROGRAM, other);
  write_file(other, read_file(other) + "x");
  Agents agents(2);
  agents.start(0, "unlike-builds", {"parallel.data=2"});
  agents.use(other);
  agents.start(1, "unlike-builds", {"parallel.data=2"});
  CHECK(agents.wait() == std::vector<int>{2, 2});
  CHECK_MESSAGE(agents.node(0).errors().find("node 1 is another program than node 0: scaletrain") != std::string::npos,
                agents.errors());
}

TEST_CASE("a_worker_killed_on_another_node_costs_a_restart_and_nothing_else") {
  Agents agents(2, "worker-killed", nodes_of_two_ranks);
  REQUIRE_MESSAGE(reaches("worker-killed", 25, agents), agents.errors());
  const std::vector<pid_t> workers = workers_by_rank(agents.node(1), 1);
  REQUIRE(workers.size() == 1);
  ::kill(workers.front(), SIGKILL);
  CHECK_MESSAGE(agents.wait() == both_finished, agents.errors());
  CHECK_MESSAGE(agents.node(0).errors().find("node 1: rank 1: worker") != std::string::npos, agents.errors());
  CHECK_MESSAGE(agents.node(0).errors().find("restart 1 of 3") != std::string::npos, agents.errors());
  check_same_bits("worker-killed", undisturbed_two());
  check_nothing_left("worker-killed");
}

TEST_CASE("a_lost_agent_ends_the_run_with_75_and_the_next_start_goes_on") {
  Agents& agents = disturbed_agents("agent-killed");
  CHECK_MESSAGE(agents.wait() == first_interrupted, agents.errors());
  CHECK(agents.node(0).errors().find("node 1 is lost") != std::string::npos);
  check_nothing_left("agent-killed");
  Agents again(2, "agent-killed", nodes_of_two_ranks);
  CHECK_MESSAGE(again.wait() == both_finished, again.errors());
  check_same_bits("agent-killed", undisturbed_two());
}

TEST_CASE("without_the_coordinator_the_other_agents_end_their_workers_and_leave_with_75") {
  Agents& agents = disturbed_agents("coordinator-killed");
  CHECK_MESSAGE(agents.wait() == second_interrupted, agents.errors());
  CHECK(agents.node(1).errors().find("the coordinator (the agent of node 0) cannot be reached") != std::string::npos);
  check_no_process_left("coordinator-killed");
  // The lock and the rendezvous of the dead one do not stand in the way; the job was started again.
  Agents again(2);
  for (const int node : {1, 0})
    again.start(node, "coordinator-killed", nodes_of_two_ranks, {{"SLURM_RESTART_COUNT", "1"}});
  CHECK_MESSAGE(again.wait() == both_finished, again.errors());
  check_same_bits("coordinator-killed", undisturbed_two());
}

TEST_CASE("a_signal_to_the_agent_of_one_node_makes_all_ranks_save_the_same_step") {
  for (const int signalled : {0, 1}) {
    const std::string run = "node-signalled-" + std::to_string(signalled);
    Agents agents(2, run, nodes_of_two_ranks);
    REQUIRE_MESSAGE(reaches(run, 25, agents), agents.errors());
    agents.node(signalled).signal(signalled == 0 ? SIGTERM : SIGUSR1);
    CHECK_MESSAGE(agents.wait() == both_interrupted, agents.errors());
    const long last = trajectory_of(layout_folder(run)).last_step();
    CHECK(fs::exists(checkpoint(layout_folder(run), static_cast<int>(last))));
    check_nothing_left(run);
    Agents again(2, run, nodes_of_two_ranks);
    CHECK_MESSAGE(again.wait() == both_finished, again.errors());
    check_same_bits(run, undisturbed_two());
  }
}

TEST_CASE("an_agent_that_stands_still_is_given_up_and_leaves_when_it_finds_its_lease_run_out") {
  Agents& agents = disturbed_agents("agent-stopped");
  CHECK_MESSAGE(agents.node(0).wait(ranks_patience).exit_code == 75, agents.errors());
  CHECK(agents.node(0).errors().find("node 1 is lost") != std::string::npos);
  agents.node(1).signal(SIGCONT);
  CHECK(agents.node(1).wait(ranks_patience).exit_code == 75);
  check_no_process_left("agent-stopped");
}

TEST_CASE("a_second_agent_of_a_node_is_refused_and_the_first_undisturbed") {
  Agents agents(2, "twice", nodes_of_two_ranks);
  REQUIRE_MESSAGE(reaches("twice", 5, agents), agents.errors());
  Agents second(2, agents);
  second.start(1, "twice", nodes_of_two_ranks);
  CHECK_MESSAGE(hold_up_until(agents, "twice", 0, [&] { return !second.node(1).running(); }), second.errors());
  CHECK(second.node(1).wait(ranks_patience).exit_code == 2);
  CHECK(second.errors().find("another agent of node 1") != std::string::npos);
  CHECK_MESSAGE(agents.wait() == both_finished, agents.errors());
  check_same_bits("twice", undisturbed_two());
}

TEST_CASE("a_coordinator_that_stands_still_costs_the_others_their_lease") {
  Agents& agents = disturbed_agents("coordinator-stopped");
  CHECK_MESSAGE(agents.node(1).wait(ranks_patience).exit_code == 75, agents.errors());
  agents.node(0).signal(SIGCONT);
  CHECK(agents.node(0).wait(ranks_patience).exit_code == 75);
  check_no_process_left("coordinator-stopped");
}

TEST_CASE("one_host_has_as_many_ranks_as_ranks_per_node_says") {
  const Ended end =
      run_program(layout_launch("one-host", {"parallel.data=auto", "parallel.tensor=2", "launch.ranks_per_node=4"}),
                  ranks_patience);
  CHECK_MESSAGE(end.exit_code == 0, end.errors);
  CHECK(end.says("4 workers started"));
  check_same_losses("one-host");
  const Ended misfit = run_program(layout_launch("misfit-host", {"parallel.data=2", "launch.ranks_per_node=1"}));
  CHECK(misfit.exit_code == 2);
  CHECK(misfit.says("1 node with launch.ranks_per_node: 1 make 1"));
}

TEST_CASE("of_agents_of_one_node_that_are_started_at_once_one_takes_part") {
  Agents agents(2);
  Agents rivals(2, agents);
  agents.start(1, "rivals", nodes_of_two_ranks);
  rivals.start(1, "rivals", nodes_of_two_ranks);
  agents.start(0, "rivals", nodes_of_two_ranks);
  const auto is_one_refused = [&] { return !agents.node(1).running() || !rivals.node(1).running(); };
  CHECK_MESSAGE(hold_up_until(agents, "rivals", 0, is_one_refused), agents.errors(), rivals.errors());
  CHECK_MESSAGE(agents.node(0).wait(ranks_patience).exit_code == 0, agents.errors());
  std::vector<int> codes = {agents.node(1).wait(ranks_patience).exit_code,
                            rivals.node(1).wait(ranks_patience).exit_code};
  std::sort(codes.begin(), codes.end());
  CHECK_MESSAGE(codes == std::vector<int>({0, 2}), agents.errors(), rivals.errors());
  CHECK((agents.errors() + rivals.errors()).find("another agent of node 1 is at work") != std::string::npos);
  check_same_bits("rivals", undisturbed_two());
}

TEST_CASE("a_rank_that_is_slower_than_another_nodes_is_named_with_its_host_and_left_alone") {
  const std::string run = "slow-node";
  Agents agents(2, run, {"parallel.data=2", "train.steps=1000000", "checkpoint={every: 100000, keep: 3}"});
  REQUIRE_MESSAGE(reaches(run, 5, agents), agents.errors());
  const std::vector<pid_t> workers = agents.workers(1);
  REQUIRE(workers.size() == 1);
  // Most of the time it is not running. It takes two windows of five seconds.
  const bool is_warned = wait_until(
      [&] {
        ::kill(workers.front(), SIGSTOP);
        sleep_for(0.06);
        ::kill(workers.front(), SIGCONT);
        sleep_for(0.01);
        return says(agents, "rank 1 is slow") || !agents.node(0).running();
      },
      ranks_patience);
  CHECK(is_warned);
  CHECK_MESSAGE(says(agents, "node 1 ("), agents.errors());
  agents.node(0).signal(SIGTERM);
  CHECK_MESSAGE(agents.wait() == both_interrupted, agents.errors());
  CHECK_FALSE(says(agents, "restart 1 of"));
}

TEST_CASE("nothing_of_a_run_on_two_nodes_listens_elsewhere_than_on_the_configured_interface") {
  const std::string run = "listening";
  Settings settings = nodes_of_two_ranks;
  settings.push_back("train.steps=100000");
  Agents agents(2, run, settings);
  REQUIRE_MESSAGE(reaches(run, 5, agents), agents.errors());
  std::set<std::string> listening;
  for (const pid_t process : processes_with(layout_folder(run).string()))
    for (const TcpSocket& socket : tcp_sockets_of(process))
      if (socket.is_listening) listening.insert(socket.local_address);
  // Agents' rendezvous, the workers' and their data planes, on lo.
  CHECK(listening == std::set<std::string>{"0100007F"});
  agents.node(0).signal(SIGTERM);
  CHECK_MESSAGE(agents.wait() == both_interrupted, agents.errors());
}

TEST_CASE("launched_ranks_cannot_be_elastic") {
  LaunchedRanks ranks(2, "launched-elastic", {"parallel.data=2", "supervise.elastic.min_data=1"});
  CHECK(ranks.wait() == std::vector<int>(2, 2));
  CHECK(ranks.errors().find("supervise.elastic: ranks that torchrun has started stay as many as they are") !=
        std::string::npos);
}

TEST_CASE("agents_that_wait_for_others_leave_with_75_when_they_are_interrupted") {
  Agents first(2);
  first.start(0, "waiting-first", nodes_of_two_ranks);
  Agents second(2);
  second.start(1, "waiting-second", nodes_of_two_ranks);
  REQUIRE(wait_until([] { return fs::exists(layout_folder("waiting-first") / "rendezvous.json"); }, ranks_patience));
  REQUIRE(wait_until([&] { return takes_interruptions(second.node(1).pid()); }, ranks_patience));
  // What it waits for is a file: nothing tells that it has begun to.
  sleep_for(0.5);
  first.node(0).signal(SIGTERM);
  second.node(1).signal(SIGTERM);
  CHECK_MESSAGE(first.node(0).wait(ranks_patience).exit_code == 75, first.errors());
  CHECK_FALSE(fs::exists(layout_folder("waiting-first") / "rendezvous.json"));
  CHECK_MESSAGE(second.node(1).wait(ranks_patience).exit_code == 75, second.errors());
}

TEST_CASE("the_agents_of_another_job_leave_a_run_that_is_at_work_alone") {
  Settings longer = nodes_of_two_ranks;
  longer.push_back("train.steps=100000");
  Agents agents(2, "taken", longer);
  REQUIRE_MESSAGE(reaches("taken", 5, agents), agents.errors());
  Agents others(2);
  for (const int node : {0, 1}) others.start(node, "taken", longer, {{"SLURM_JOB_ID", "another"}});
  CHECK_MESSAGE(others.wait() == std::vector<int>(2, 2), others.errors());
  for (const int node : {0, 1})
    CHECK_MESSAGE(others.node(node).errors().find("job-taken") != std::string::npos, others.errors());
  agents.node(0).signal(SIGTERM);
  CHECK_MESSAGE(agents.wait() == both_interrupted, agents.errors());
  CHECK_MESSAGE(agents.errors().find("restart 1 of") == std::string::npos, agents.errors());
  check_nothing_left("taken");
}

}  // namespace scaletrain
