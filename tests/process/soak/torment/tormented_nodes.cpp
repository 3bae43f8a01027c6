#include "tormented_nodes.h"

#include <algorithm>
#include <cmath>
#include <csignal>

#include "trouble.h"

namespace scaletrain {
namespace {

constexpr double tolerance = 1e-5;
// A lost node is one that is silent for half of it.
constexpr double heartbeat = 8.0;

Settings settings_of(const NodesLayout& layout) {
  Settings settings = {"train.steps=" + std::to_string(soak_steps), "evaluate={every: 15, batches: 2}",
                       "checkpoint={every: 4, keep: 3}", "supervise.max_restarts=1000",
                       "supervise.heartbeat=" + std::to_string(static_cast<int>(heartbeat)) + "s"};
  settings.insert(settings.end(), layout.settings.begin(), layout.settings.end());
  return settings;
}

const Trajectory& undisturbed(const NodesLayout& layout) {
  return undisturbed_run_of(layout.name, [&layout](const std::string& run) {
    return run_as_one_agent(layout.nodes, run, settings_of(layout));
  });
}

bool is_close(const std::string& ours, const std::string& theirs) {
  // The loss comes first in a step's line, and is alone in an evaluation's.
  return std::abs(std::stod(ours) - std::stod(theirs)) <= tolerance * std::abs(std::stod(theirs));
}

// Of maps from a step to what was written: the same keys, and losses close to each other.
template <class Lines>
bool are_close(const Lines& found, const Lines& expected) {
  return found.size() == expected.size() &&
         std::equal(found.begin(), found.end(), expected.begin(), [](const auto& ours, const auto& theirs) {
           return ours.first == theirs.first && is_close(ours.second, theirs.second);
         });
}

}  // namespace

const std::vector<NodesLayout>& nodes_layouts() {
  static const std::vector<NodesLayout> all = {
      {"2-nodes-data-2", 2, false, {"parallel.data=2", "parallel.zero=1"}},
      {"3-nodes-data-3-zero-2", 3, false, {"parallel.data=3", "parallel.zero=2", "train.global_batch=9"}},
      {"2-nodes-data-2-tensor-2", 2, false, {"parallel.data=2", "parallel.tensor=2", "parallel.zero=3"}},
      {"2-nodes-pipeline-2", 2, false, {"parallel.pipeline=2"}},
      {"3-nodes-elastic",
       3,
       true,
       {"parallel.data=3", "model.hidden=64", "model.context=64", "train.global_batch=9",
        "supervise.elastic.min_data=1"}},
  };
  return all;
}

const char* name_of(NodesTorment torment) {
  switch (torment) {
    case NodesTorment::kill_rank:
      return "kill -9 of a rank";
    case NodesTorment::kill_agent:
      return "kill -9 of an agent";
    case NodesTorment::kill_coordinator:
      return "kill -9 of the coordinator";
    case NodesTorment::stop_agent:
      return "SIGSTOP of an agent until it is given up";
    case NodesTorment::pause_agent:
      return "SIGSTOP of an agent for half a second";
    case NodesTorment::tell_agent:
      return "SIGTERM or SIGUSR1 to one agent";
    case NodesTorment::reset_connection:
      return "a reset connection of a rank or an agent";
  }
  return "?";
}

TormentedNodes::TormentedNodes(const std::string& name, const NodesLayout& layout) : Tormented(name), layout_(layout) {
  undisturbed(layout);
}

void TormentedNodes::start_again(int node) {
  agents_->start(node, name_, settings_of(layout_), {{"SLURM_RESTART_COUNT", std::to_string(starts_ - 1)}});
  killed_.erase(node);
}

void TormentedNodes::start_all() {
  agents_ = std::make_unique<Agents>(layout_.nodes);
  losses_since_start_ = 0;
  begun_before_start_ = beginnings_of(folder_).count;
  ++starts_;
  for (int node = 0; node < layout_.nodes; ++node) start_again(node);
}

bool TormentedNodes::any_has_left() {
  for (int node = 0; node < layout_.nodes; ++node)
    if (killed_.count(node) == 0 && !agents_->node(node).running()) return true;
  return false;
}

void TormentedNodes::await_any_leaving() {
  if (!wait_until([&] { return any_has_left(); }, patience)) note("no agent leaves");
}

// One has left: the others do as well, by themselves.
void TormentedNodes::collect_ends() {
  for (int node = 0; node < layout_.nodes; ++node) {
    const Ended& end = agents_->node(node).wait(patience);
    const std::string agent = "the agent of node " + std::to_string(node);
    if (end.timed_out) note(agent + " stays although another one has left");
    // 75: asked to save and leave, or a node is lost. 6: three losses met the same step.
    const bool gave_up = end.exit_code == 6 && losses_since_start_ >= 3;
    if (end.exit_code == 0) finished_ = true;
    if (end.exit_code != 0 && end.exit_code != 75 && end.signal != SIGKILL && !gave_up)
      note(agent + " left with " + std::to_string(end.exit_code));
  }
  await_end_of_all();
}

bool TormentedNodes::keep_running() {
  if (finished_ || !problem().empty()) return false;
  if (agents_ && !any_has_left()) return true;
  if (agents_) {
    collect_ends();
    if (finished_ || !problem().empty()) return false;
  }
  start_all();
  return true;
}

bool TormentedNodes::await_new_step(int before, std::vector<double>& into) {
  const double since = test_clock();
  bool is_back = false;
  const bool in_time = wait_until(
      [&] {
        sleep_for(0.003);
        is_back = beginnings_of(folder_).has_gone_on(before);
        return is_back || any_has_left();
      },
      patience);
  if (!in_time) note("no step followed a fault in time");
  if (is_back) into.push_back(test_clock() - since);
  return is_back;
}

bool TormentedNodes::kill_rank(pid_t worker) {
  const int before = beginnings_of(folder_).count;
  // It may have died of what was done before.
  if (!is_alive(worker)) return false;
  ::kill(worker, SIGKILL);
  ++losses_since_start_;
  ++ranks_killed_;
  await_new_step(before, recoveries_);
  return true;
}

// An elastic run goes on without it, and with it when it is back; another one is started again as a whole.
bool TormentedNodes::lose_node(int node) {
  const int before = beginnings_of(folder_).count;
  ranks_killed_ += static_cast<int>(agents_->workers(node).size());
  agents_->node(node).signal(SIGKILL);
  agents_->node(node).wait();
  killed_.insert(node);
  ++losses_since_start_;
  look_for_checkpoint();
  if (!layout_.is_elastic || node == 0 || !await_new_step(before, loss_recoveries_)) {
    await_any_leaving();
  } else {
    start_again(node);
  }
  return true;
}

bool TormentedNodes::stop_agent(int node) {
  const int before = beginnings_of(folder_).count;
  agents_->node(node).signal(SIGSTOP);
  ++losses_since_start_;
  if (layout_.is_elastic && node != 0) {
    await_new_step(before, loss_recoveries_);
  } else {
    await_any_leaving();
  }
  agents_->node(node).signal(SIGCONT);
  const Ended& end = agents_->node(node).wait(patience);
  if (end.exit_code != 75 && end.exit_code != 0)
    note("an agent that had been given up left with " + std::to_string(end.exit_code));
  look_for_checkpoint();
  if (layout_.is_elastic && node != 0 && end.exit_code == 75 && agents_->node(0).running()) start_again(node);
  return true;
}

bool TormentedNodes::reset_any_connection(int node, std::size_t choice) {
  std::vector<pid_t> processes = agents_->workers(node);
  processes.push_back(agents_->node(node).pid());
  const long step = newest_step(folder_);
  if (!reset_connection(processes[choice % processes.size()], choice / 8)) return false;
  ++losses_since_start_;
  return reach(step + 2 * save_distance) || finished_;
}

// Until the agents have met: they wait for one that was killed before it came as long as for one that is late.
bool TormentedNodes::reach_training() {
  const bool in_time = wait_until(
      [&] {
        sleep_for(0.003);
        return !keep_running() || beginnings_of(folder_).has_gone_on(begun_before_start_);
      },
      patience);
  if (!in_time) note("no step followed a start in time");
  return in_time && !finished_ && problem().empty();
}

bool TormentedNodes::suffer(NodesTorment torment, long step, SoakRandom& random) {
  // Drawn whatever happens, so that a seed means the same faults on a faster machine.
  const std::size_t choice = random();
  const double delay = fraction_of(random);
  const int number = signal_to_tell(random);
  if (!reach(step) || !reach_training()) return false;
  sleep_for(0.05 * delay);
  if (any_has_left()) return false;
  const bool is_for_other = torment == NodesTorment::kill_agent;
  const int node = torment == NodesTorment::kill_coordinator
                       ? 0
                       : (is_for_other ? other_node_from(choice)
                                       : static_cast<int>(choice % static_cast<std::size_t>(layout_.nodes)));
  // One that came back may have to wait until it is made use of.
  const std::vector<pid_t> workers = agents_->workers(node);
  if (workers.empty()) return false;
  switch (torment) {
    case NodesTorment::kill_rank:
      return kill_rank(workers[choice / 8 % workers.size()]);
    case NodesTorment::kill_agent:
    case NodesTorment::kill_coordinator:
      return lose_node(node);
    case NodesTorment::stop_agent:
      return stop_agent(node);
    case NodesTorment::pause_agent:
      agents_->node(node).signal(SIGSTOP);
      sleep_for(0.5);
      agents_->node(node).signal(SIGCONT);
      return true;
    case NodesTorment::tell_agent:
      agents_->node(node).signal(number);
      await_any_leaving();
      look_for_checkpoint();
      return true;
    case NodesTorment::reset_connection:
      return reset_any_connection(node, choice / 8);
  }
  return true;
}

void TormentedNodes::compare_with_undisturbed(const Trajectory& found) {
  const Trajectory& expected = undisturbed(layout_);
  if (layout_.is_elastic) {
    if (!are_close(found.steps, expected.steps)) note("losses farther from the undisturbed run's than 1e-5");
    if (!are_close(found.evaluations, expected.evaluations))
      note("evaluations farther from the undisturbed run's than 1e-5");
  } else if (found.steps != expected.steps || found.evaluations != expected.evaluations) {
    note("other losses or evaluations than the undisturbed run's");
  }
}

}  // namespace scaletrain
