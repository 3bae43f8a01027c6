#include "tormented_nodes.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <stdexcept>

namespace scaletrain {
namespace {

constexpr double patience = 150.0;
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
  static std::map<std::string, Trajectory> all;
  if (const auto known = all.find(layout.name); known != all.end()) return known->second;
  const std::string run = "undisturbed-" + layout.name;
  const Ended end = run_as_one_agent(layout.nodes, run, settings_of(layout));
  if (end.exit_code != 0) throw std::runtime_error("the undisturbed run of " + layout.name + " failed:\n" + end.errors);
  return all[layout.name] = trajectory_of(layout_folder(run));
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

TormentedNodes::TormentedNodes(const std::string& name, const NodesLayout& layout)
    : name_(name), layout_(layout), folder_(layout_folder(name)) {
  undisturbed(layout);
}

void TormentedNodes::note(const std::string& problem) {
  if (problem_.empty()) problem_ = (agents_ ? "the agents said:\n" + agents_->errors() : "") + problem;
}

void TormentedNodes::start_all() {
  agents_ = std::make_unique<Agents>(layout_.nodes);
  killed_.clear();
  losses_since_start_ = 0;
  for (int node = 0; node < layout_.nodes; ++node)
    agents_->start(node, name_, settings_of(layout_), {{"SLURM_RESTART_COUNT", std::to_string(starts_)}});
  ++starts_;
}

bool TormentedNodes::any_has_left() {
  for (int node = 0; node < layout_.nodes; ++node)
    if (killed_.count(node) == 0 && !agents_->node(node).running()) return true;
  return false;
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
  if (!wait_until([&] { return processes_with(folder_.string()).empty(); }, patience))
    note("a process outlives its agent");
}

bool TormentedNodes::keep_running() {
  if (finished_ || !problem_.empty()) return false;
  if (agents_ && !any_has_left()) return true;
  if (agents_) {
    collect_ends();
    if (finished_ || !problem_.empty()) return false;
  }
  start_all();
  return true;
}

bool TormentedNodes::reach(long step) {
  const bool in_time = wait_until(
      [&] {
        sleep_for(0.002);
        return !keep_running() || newest_step(folder_) >= step;
      },
      patience);
  if (!in_time) note("step " + std::to_string(step) + " was not reached in time");
  return in_time && !finished_ && problem_.empty();
}

bool TormentedNodes::await_new_step(int before, std::vector<double>* into) {
  const double since = test_clock();
  bool is_back = false;
  const bool in_time = wait_until(
      [&] {
        sleep_for(0.003);
        const Beginnings now = beginnings_of(folder_);
        is_back = now.count > before && now.has_step;
        return is_back || any_has_left();
      },
      patience);
  if (!in_time) note("no step followed a fault in time");
  if (is_back && into != nullptr) into->push_back(test_clock() - since);
  return is_back;
}

bool TormentedNodes::kill_rank(std::size_t choice) {
  const std::vector<pid_t> workers = agents_->workers(node_from(choice));
  if (workers.empty()) return false;
  const int before = beginnings_of(folder_).count;
  ::kill(workers[choice / 8 % workers.size()], SIGKILL);
  ++losses_since_start_;
  ++ranks_killed_;
  await_new_step(before, &recoveries_);
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
  if (!layout_.is_elastic || node == 0 || !await_new_step(before, &loss_recoveries_)) {
    wait_until([&] { return any_has_left(); }, patience);
    return true;
  }
  agents_->start(node, name_, settings_of(layout_), {{"SLURM_RESTART_COUNT", std::to_string(starts_ - 1)}});
  killed_.erase(node);
  return true;
}

bool TormentedNodes::stop_agent(int node) {
  const int before = beginnings_of(folder_).count;
  agents_->node(node).signal(SIGSTOP);
  ++losses_since_start_;
  if (layout_.is_elastic && node != 0) {
    await_new_step(before, &loss_recoveries_);
  } else {
    wait_until([&] { return any_has_left(); }, patience);
  }
  agents_->node(node).signal(SIGCONT);
  const Ended& end = agents_->node(node).wait(patience);
  if (end.exit_code != 75 && end.exit_code != 0)
    note("an agent that had been given up left with " + std::to_string(end.exit_code));
  look_for_checkpoint();
  if (layout_.is_elastic && node != 0 && end.exit_code == 75 && agents_->node(0).running())
    agents_->start(node, name_, settings_of(layout_), {{"SLURM_RESTART_COUNT", std::to_string(starts_ - 1)}});
  return true;
}

bool TormentedNodes::reset_any_connection(std::size_t choice) {
  const int node = node_from(choice);
  std::vector<pid_t> processes = agents_->workers(node);
  processes.push_back(agents_->node(node).pid());
  const long step = newest_step(folder_);
  if (!reset_connection(processes[choice / 8 % processes.size()], choice / 64)) return false;
  ++losses_since_start_;
  return reach(step + 8) || finished_;
}

// At every instant one verifies, once the first was written.
void TormentedNodes::look_for_checkpoint() {
  was_saved_ = was_saved_ || !checkpoint_names(folder_).empty();
  std::string said;
  if (was_saved_ && !some_checkpoint_verifies(folder_, said)) note("no checkpoint verifies\n" + said);
}

bool TormentedNodes::suffer(NodesTorment torment, long step, SoakRandom& random) {
  // Drawn whatever happens, so that a seed means the same faults on a faster machine.
  const std::size_t choice = random();
  const double delay = fraction_of(random);
  const int number = signal_to_tell(random);
  if (!reach(step)) return false;
  sleep_for(0.05 * delay);
  if (any_has_left()) return false;
  switch (torment) {
    case NodesTorment::kill_rank:
      return kill_rank(choice);
    case NodesTorment::kill_agent:
      return lose_node(other_node_from(choice));
    case NodesTorment::kill_coordinator:
      return lose_node(0);
    case NodesTorment::stop_agent:
      return stop_agent(node_from(choice));
    case NodesTorment::pause_agent:
      agents_->node(node_from(choice)).signal(SIGSTOP);
      sleep_for(0.5);
      agents_->node(node_from(choice)).signal(SIGCONT);
      return true;
    case NodesTorment::tell_agent:
      agents_->node(node_from(choice)).signal(number);
      wait_until([&] { return any_has_left(); }, patience);
      look_for_checkpoint();
      return true;
    case NodesTorment::reset_connection:
      return reset_any_connection(choice);
  }
  return true;
}

void TormentedNodes::compare(const Trajectory& found, const Trajectory& expected) {
  const bool is_equal = found.steps == expected.steps && found.evaluations == expected.evaluations;
  if (layout_.is_elastic) {
    if (!are_close(found.steps, expected.steps)) note("losses farther from the undisturbed run's than 1e-5");
    if (!are_close(found.evaluations, expected.evaluations))
      note("evaluations farther from the undisturbed run's than 1e-5");
  } else if (!is_equal) {
    note("other losses or evaluations than the undisturbed run's");
  }
}

std::string TormentedNodes::finish() {
  while (keep_running()) sleep_for(0.005);
  if (!problem_.empty()) return problem_;
  compare(trajectory_of(folder_), undisturbed(layout_));
  const std::string left = problem_of_finished(folder_);
  if (!left.empty()) note(left);
  return problem_;
}

}  // namespace scaletrain
