// Several agents of an elastic run: nodes go and come back. The oracle is the run that nobody disturbed, within the
// tolerance of equal losses on other layouts; a step on other samples has another loss.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <functional>

#include "agents.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

const std::vector<int> first_and_last_finished = {0, -1, 0};
const std::vector<int> first_and_last_interrupted = {75, -1, 75};

// Nine samples a step: three replicas have three each, of two one has five and the other four.
const Settings three_nodes = {"parallel.data=3",   "model.hidden=64",
                              "model.context=64",  "train.global_batch=9",
                              "train.steps=50",    "checkpoint={every: 5, keep: 100}",
                              "evaluate.every=25", "supervise.elastic.min_data=2"};
// Eight samples a step: two each for four replicas; of three, two have three and the last one two and an empty
// micro-batch.
const Settings four_nodes = {"parallel.data=4",   "model.hidden=64",
                             "model.context=64",  "train.global_batch=8",
                             "train.steps=60",    "checkpoint={every: 5, keep: 100}",
                             "evaluate.every=30", "supervise.elastic.min_data=1"};
// Through the folder that an agent was started in, so that one config means other files on a node.
const Settings two_nodes = {"data.train=[{path: /proc/self/cwd/train.txt}]",
                            "parallel.data=2",
                            "model.hidden=64",
                            "model.context=64",
                            "train.steps=50",
                            "checkpoint={every: 5, keep: 100}",
                            "evaluate.every=25",
                            "supervise.elastic.min_data=1"};

const Settings& settings_for(int nodes) {
  return nodes == 2 ? two_nodes : nodes == 3 ? three_nodes : four_nodes;
}

const Trajectory& undisturbed(int nodes) {
  static std::map<int, Trajectory> known;
  if (const auto found = known.find(nodes); found != known.end()) return found->second;
  const std::string run = "elastic-undisturbed-" + std::to_string(nodes);
  const Ended end = run_as_one_agent(nodes, run, settings_for(nodes));
  REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
  return known[nodes] = trajectory_of(layout_folder(run));
}

void check_close_to_undisturbed(int nodes, const std::string& run) {
  const Trajectory& expected = undisturbed(nodes);
  const Trajectory found = trajectory_of(layout_folder(run));
  REQUIRE(found.steps.size() == expected.steps.size());
  REQUIRE(found.evaluations.size() == expected.evaluations.size());
  const auto check = [&run](long step, const std::string& ours, const std::string& theirs) {
    CHECK_MESSAGE(std::abs(std::stod(ours) - std::stod(theirs)) <= 1e-5 * std::abs(std::stod(theirs)), run, ", step ",
                  step, ": ", ours, " against ", theirs);
  };
  for (const auto& entry : expected.steps) check(entry.first, found.steps.at(entry.first), entry.second);
  for (const auto& entry : expected.evaluations)
    check(entry.first.first, found.evaluations.at(entry.first), entry.second);
}

bool comes_to_say(Agents& agents, const std::string& words) {
  return wait_until([&] { return says(agents, words) || !agents.node(0).running(); }, ranks_patience) &&
         says(agents, words);
}

// Of these, each test looks at one.
Agents& disturbed(const std::string& run) {
  static std::map<std::string, Agents> runs = [] {
    auto begun = disturbed_runs(
        3, three_nodes, 12,
        {{.run = "shrunk", .node = 1, .signal = SIGKILL}, {.run = "first-lost", .node = 0, .signal = SIGKILL}});
    Settings more = three_nodes;
    more.push_back("supervise.elastic.min_data=3");
    begun.merge(disturbed_runs(3, more, 12, {{.run = "too-few", .node = 1, .signal = SIGKILL}}));
    return begun;
  }();
  return runs.at(run);
}

// The run comes to the step, these nodes are lost, and it goes on without: node 0's agent says how.
void lose(Agents& agents, const std::string& run, long step, const std::vector<int>& nodes, const std::string& words) {
  REQUIRE_MESSAGE(reaches(run, step, agents), agents.errors());
  for (const int node : nodes) agents.node(node).signal(SIGKILL);
  REQUIRE_MESSAGE(comes_to_say(agents, words), agents.errors());
}

// The agent of a node is started again while the run goes on, held up by another node's worker until the condition is
// met: or the run might end before.
void come_back(Agents& agents, const std::string& run, const Settings& settings, int node, int held_node,
               const std::function<bool()>& condition) {
  agents.start(node, run, settings);
  CHECK_MESSAGE(hold_up_until(agents, run, held_node, condition), agents.errors());
}

long times(const std::string& text, const std::string& words) {
  long count = 0;
  for (std::size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++count;
  return count;
}

// How often the workers of the node have been asked to make room for more, and restart rounds have begun that they are
// in: a worker that is still starting up then is ended without.
long changes_of_size(Agents& agents, const std::string& run, int node) {
  const std::string log = read_file(layout_folder(run) / "logs" / ("agent-0" + std::to_string(node) + ".log"));
  const std::string told = agents.node(0).errors();
  return times(log, "asked to leave") + times(told, "rank on node") + times(told, "ranks on nodes");
}

// As soon as the agent is back the workers save and leave, and begin anew with those of its node.
void come_back_and_grow(Agents& agents, const std::string& run, const Settings& settings, int node, int held_node) {
  const long before = changes_of_size(agents, run, held_node);
  come_back(agents, run, settings, node, held_node,
            [&] { return changes_of_size(agents, run, held_node) > before || !agents.node(node).running(); });
  CHECK_MESSAGE(says(agents, "the agent of node " + std::to_string(node) + " is back"), agents.errors());
  CHECK_MESSAGE(says(agents, "there are nodes for more replicas"), agents.errors());
}

// A program for agents to be started with, in the program's place.
fs::path write_program(const std::string& name, const std::string& script) {
  fs::path program = workspace().write(name, "#!/bin/sh\n" + script + "\n");
  fs::permissions(program, fs::perms::owner_all);
  return program;
}

}  // namespace

TEST_CASE("an_elastic_run_goes_on_with_fewer_replicas_and_grows_when_the_node_is_back") {
  const std::string run = "elastic";
  Agents agents(3, run, three_nodes);
  lose(agents, run, 12, {2}, "2 replicas of 3");
  CHECK(says(agents, "a lost node uses up no restart (0 of 3 are used)"));
  come_back_and_grow(agents, run, three_nodes, 2, 1);
  CHECK_MESSAGE(agents.wait() == std::vector<int>(3, 0), agents.errors());
  // Not only at the beginning.
  CHECK_MESSAGE(says(agents, "3 ranks on nodes 0, 1, 2, 3 replicas, from " + layout_folder(run).string()),
                agents.errors());
  check_close_to_undisturbed(3, run);
  check_nothing_left(run);
}

TEST_CASE("of_four_nodes_one_then_two_at_once_then_one_are_lost_and_come_back_with_the_same_losses") {
  const std::string run = "four";
  Agents agents(4, run, four_nodes);
  lose(agents, run, 7, {3}, "3 ranks on nodes 0, 1, 2, 3 replicas of 4");
  lose(agents, run, 15, {1, 2}, "1 rank on node 0, 1 replica of 4");
  CHECK(says(agents, "nodes 1, 2 are lost"));
  come_back_and_grow(agents, run, four_nodes, 2, 0);
  REQUIRE_MESSAGE(comes_to_say(agents, "2 ranks on nodes 0, 2, 2 replicas of 4"), agents.errors());
  come_back_and_grow(agents, run, four_nodes, 3, 2);
  REQUIRE_MESSAGE(comes_to_say(agents, "3 ranks on nodes 0, 2, 3, 3 replicas of 4"), agents.errors());
  CHECK_MESSAGE(agents.wait() == std::vector<int>({0, -1, 0, 0}), agents.errors());
  CHECK_FALSE(says(agents, "restart 1 of"));
  check_close_to_undisturbed(4, run);
  check_nothing_left(run);
}

TEST_CASE("an_elastic_run_ends_with_the_replicas_that_are_left_and_a_late_agent_learns_that") {
  const std::string run = "shrunk";
  Agents& agents = disturbed(run);
  CHECK_MESSAGE(agents.wait() == first_and_last_finished, agents.errors());
  CHECK(says(agents, "2 ranks on nodes 0, 2, 2 replicas of 3"));
  check_close_to_undisturbed(3, run);
  check_nothing_left(run);
  agents.start(1, run, three_nodes);
  CHECK_MESSAGE(agents.node(1).wait(ranks_patience).exit_code == 0, agents.errors());
  check_nothing_left(run);
}

TEST_CASE("a_run_that_is_complete_waits_for_no_agent_and_one_that_comes_later_leaves_with_0") {
  const std::string run = "shrunk";
  REQUIRE(fs::exists(layout_folder(run)));  // the test before
  Agents agents(3);
  agents.start(0, run, three_nodes);
  CHECK_MESSAGE(agents.node(0).wait(ranks_patience).exit_code == 0, agents.errors());
  CHECK(says(agents, "already complete"));
  for (const int node : {1, 2}) {
    agents.start(node, run, three_nodes);
    CHECK_MESSAGE(agents.node(node).wait(ranks_patience).exit_code == 0, agents.errors());
  }
  check_nothing_left(run);
}

TEST_CASE("an_elastic_run_with_too_few_nodes_left_ends_with_75") {
  Agents& agents = disturbed("too-few");
  CHECK_MESSAGE(agents.wait() == first_and_last_interrupted, agents.errors());
  CHECK(says(agents, "min_data: 3 replicas"));
}

TEST_CASE("an_elastic_run_ends_with_75_when_its_first_agent_is_lost_and_the_next_start_goes_on") {
  const std::string run = "first-lost";
  Agents& agents = disturbed(run);
  CHECK_MESSAGE(agents.wait() == std::vector<int>({-1, 75, 75}), agents.errors());
  check_no_process_left(run);
  Agents again(3);
  for (const int node : {2, 0, 1}) again.start(node, run, three_nodes, {{"SLURM_RESTART_COUNT", "1"}});
  CHECK_MESSAGE(again.wait() == std::vector<int>(3, 0), again.errors());
  check_close_to_undisturbed(3, run);
  check_nothing_left(run);
}

TEST_CASE("an_agent_with_another_config_that_comes_later_is_refused_and_the_run_undisturbed") {
  const std::string run = "late-other-config";
  Agents agents(3, run, three_nodes);
  lose(agents, run, 12, {2}, "2 replicas of 3");
  Settings other = three_nodes;
  other.push_back("train.optimizer.learning_rate=0.5");
  come_back(agents, run, other, 2, 1, [&] { return says(agents, "node 2 cannot take part"); });
  CHECK(agents.wait() == std::vector<int>({0, 0, 2}));
  CHECK(agents.node(2).errors().find("train.optimizer.learning_rate: 0.5 here") != std::string::npos);
  CHECK_FALSE(says(agents, "there are nodes for more replicas"));
  check_close_to_undisturbed(3, run);
}

TEST_CASE("a_node_that_comes_back_without_its_corpus_is_refused_and_the_run_undisturbed" *
          doctest::skip(::geteuid() != 0)) {
  const std::string run = "no-corpus";
  Agents agents(3, run, three_nodes);
  lose(agents, run, 12, {2}, "2 replicas of 3");
  // For this agent and its workers alone the file is empty.
  const fs::path empty = workspace().write("empty.txt", "");
  agents.use(write_program("without-corpus.sh", "exec unshare -m sh -c 'mount --bind " + empty.string() + " " +
                                                    (workspace() / "train.txt").string() +
                                                    " && exec " SCALETRAIN_PROGRAM " \"$@\"' sh \"$@\""));
  come_back(agents, run, three_nodes, 2, 1, [&] { return says(agents, "node 2 cannot take part"); });
  CHECK_MESSAGE(agents.wait() == std::vector<int>({0, 0, 3}), agents.errors());
  const std::string told = agents.node(2).errors();
  CHECK_MESSAGE(told.find("data.train.0.path: " + (workspace() / "train.txt").string() + ": the file is empty") !=
                    std::string::npos,
                told);
  CHECK_FALSE(says(agents, "there are nodes for more replicas"));
  check_close_to_undisturbed(3, run);
  check_nothing_left(run);
}

TEST_CASE("a_node_that_comes_back_with_other_data_is_dismissed_and_the_run_goes_on") {
  const std::string run = "other-data-elastic";
  Agents agents(2, run, two_nodes);
  lose(agents, run, 12, {1}, "1 replica of 2");
  // Its copy was cut short meanwhile.
  const std::string whole = read_file(workspace() / "train.txt");
  const fs::path folder = workspace().write("other-node/train.txt", whole.substr(0, whole.size() / 2)).parent_path();
  agents.use(write_program("in-other-folder.sh", "command=$1\nshift 2\ncd " + folder.string() +
                                                     " && exec " SCALETRAIN_PROGRAM " $command " +
                                                     (workspace() / "config.yaml").string() + " \"$@\""));
  come_back_and_grow(agents, run, two_nodes, 1, 0);
  CHECK_MESSAGE(agents.wait() == std::vector<int>({0, 3}), agents.errors());
  CHECK_MESSAGE(says(agents, "the run made steps without node 1, and goes on without it"), agents.errors());
  const std::string told = agents.node(1).errors();
  CHECK_MESSAGE(told.find("rank 1 on host") != std::string::npos, told);
  CHECK_MESSAGE(told.find("data.train.0: /proc/self/cwd/train.txt has ") != std::string::npos, told);
  CHECK_FALSE(says(agents, "restart 1 of"));
  check_close_to_undisturbed(2, run);
  check_nothing_left(run);
}

}  // namespace scaletrain
