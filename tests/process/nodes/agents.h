// The agents of several nodes, all on this host: each with the variables that SLURM gives one task per node.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "process/ranks.h"

namespace scaletrain {

// The heartbeat of these runs, short so that leases are: an agent's is a third, and after half of it a node is lost.
inline constexpr double agents_heartbeat = 15.0;

class Agents {
 public:
  // None yet. The job is told apart from others by the run's name and by its step, as srun numbers them.
  explicit Agents(int nodes);
  // None yet, of the same step.
  Agents(int nodes, const Agents& step) : nodes_(nodes), step_(step.step_) {}
  Agents(int nodes, const std::string& run, const Settings& settings);
  // Each on one processor, so that its workers have as many threads wherever they run.
  void start(int node, const std::string& run, const Settings& settings,
             const std::vector<std::pair<std::string, std::string>>& environment = {});
  // What the next starts run.
  void use(std::filesystem::path program) { program_ = std::move(program); }
  // The last that was started for the node.
  Program& node(int index) { return *agents_.at(index).back(); }
  // Of the last starts, by node.
  std::vector<int> wait(double seconds = ranks_patience);
  // Of all starts.
  std::string errors();
  // Process ids of the workers that the node's agent has.
  std::vector<pid_t> workers(int index) { return children_of(node(index).pid()); }

 private:
  int nodes_;
  int step_;
  std::filesystem::path program_ = SCALETRAIN_PROGRAM;
  std::map<int, std::vector<std::unique_ptr<Program>>> agents_;
};

// Whether node 0's agent has said so.
bool says(Agents& agents, const std::string& words);
// Neither rendezvous nor lock nor process of the run is left.
void check_nothing_left(const std::string& run);
// False if node 0's agent has ended before.
bool reaches(const std::string& run, long step, Agents& agents);
// Holds the run up by the node's only worker, once it is there, as hold_up_until of ranks.h.
bool hold_up_until(Agents& agents, const std::string& run, int node, const std::function<bool()>& condition);

// Of a run on several nodes that has come to a step: what is then done to one of its agents.
struct Disturbance {
  std::string run{};
  int node = 0;
  int signal = 0;
  bool is_for_workers = false;  // too
};
// Begins one after the other and disturbs it, and leaves them to themselves: what each does next is to wait for a lease
// to run out, and they can do that at the same time. By name.
std::map<std::string, Agents> disturbed_runs(int nodes, const Settings& settings, long step,
                                             const std::vector<Disturbance>& disturbances);

// Runs the program on as many processors as `nodes` agents have together, each worker with one thread.
Ended run_as_one_agent(int nodes, const std::string& run, const Settings& settings);

}  // namespace scaletrain
