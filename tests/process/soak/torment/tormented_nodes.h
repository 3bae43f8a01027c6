// A run of several agents, one per node, to which things are done from outside. Whenever agents leave, all are started
// again as a job system does that puts a job back; an agent of an elastic run that was killed is started again beside
// the others.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "process/nodes/agents.h"
#include "tormented.h"

namespace scaletrain {

struct NodesLayout {
  std::string name;
  int nodes = 2;
  bool is_elastic = false;
  Settings settings{};
};

const std::vector<NodesLayout>& nodes_layouts();

enum class NodesTorment {
  kill_rank,         // of any node
  kill_agent,        // of a node that does not coordinate: its workers go with it
  kill_coordinator,  // the agent of node 0
  stop_agent,        // SIGSTOP until it is given up, or until the others have left
  pause_agent,       // SIGSTOP for less than that
  tell_agent,        // SIGTERM or SIGUSR1
  reset_connection   // any of a rank or an agent
};
const char* name_of(NodesTorment torment);

class TormentedNodes : public Tormented {
 public:
  TormentedNodes(const std::string& name, const NodesLayout& layout);

  // Runs until `step` is in the metrics, then does it. False: the run ended before, and nothing was done.
  bool suffer(NodesTorment torment, long step, SoakRandom& random);

  int ranks_killed() const { return ranks_killed_; }
  // How often all agents were started.
  int starts() const { return starts_; }
  // Seconds from the loss of a node to the first step of the smaller run.
  const std::vector<double>& recoveries_from_loss() const { return loss_recoveries_; }

 private:
  bool keep_running() override;
  std::string said() const override { return agents_ ? agents_->errors() : std::string(); }
  // Elastic: the losses within 1e-5 of the undisturbed ones; else the same bits.
  void compare_with_undisturbed(const Trajectory& found) override;
  void start_all();
  void start_again(int node);
  void collect_ends();
  bool reach_training();
  // Until the ranks have begun anew since training had begun so often, or an agent that should be there has left.
  bool await_new_step(int before, std::vector<double>& into);
  bool any_has_left();
  void await_any_leaving();
  int other_node_from(std::size_t choice) const {
    return 1 + static_cast<int>(choice % static_cast<std::size_t>(layout_.nodes - 1));
  }
  bool kill_rank(pid_t worker);
  bool lose_node(int node);
  bool stop_agent(int node);
  bool reset_any_connection(int node, std::size_t choice);

  NodesLayout layout_;
  std::unique_ptr<Agents> agents_;
  std::set<int> killed_;  // nodes whose agent was killed and not started again
  int starts_ = 0;
  int begun_before_start_ = 0;
  int losses_since_start_ = 0;
  int ranks_killed_ = 0;
  std::vector<double> loss_recoveries_;
};

}  // namespace scaletrain
