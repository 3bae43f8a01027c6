#include "agents.h"

#include <doctest/doctest.h>
#include <sched.h>

#include <algorithm>
#include <csignal>

namespace scaletrain {
namespace {

std::vector<int> processors_of_test() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> processors;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return processors;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &set)) processors.push_back(i);
  return processors;
}

// While it lives, what this thread starts runs on these processors.
class Pinned {
 public:
  explicit Pinned(const std::vector<int>& processors) {
    CPU_ZERO(&before_);
    ::sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int processor : processors) CPU_SET(processor, &set);
    if (!processors.empty()) ::sched_setaffinity(0, sizeof set, &set);
  }
  ~Pinned() { ::sched_setaffinity(0, sizeof before_, &before_); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

 private:
  cpu_set_t before_{};
};

Settings with_agents_settings(const Settings& settings) {
  // Nodes are hosts: their ranks reach each other by TCP.
  Settings all = {"launch.interface=lo", "launch.transport=tcp",
                  "supervise.heartbeat=" + std::to_string(static_cast<int>(agents_heartbeat)) + "s"};
  all.insert(all.end(), settings.begin(), settings.end());
  return all;
}

}  // namespace

Agents::Agents(int nodes) : nodes_(nodes) {
  static int next_step = 0;
  step_ = next_step++;
}

Agents::Agents(int nodes, const std::string& run, const Settings& settings) : Agents(nodes) {
  for (int node = 0; node < nodes; ++node) start(node, run, settings);
}

void Agents::start(int node, const std::string& run, const Settings& settings,
                   const std::vector<std::pair<std::string, std::string>>& environment) {
  Launch launch = layout_launch(run, with_agents_settings(settings));
  launch.executable = program_;
  launch.environment.insert(launch.environment.end(), {{"SLURM_JOB_ID", "job-" + run},
                                                       {"SLURM_STEP_ID", std::to_string(step_)},
                                                       {"SLURM_STEP_NUM_TASKS", std::to_string(nodes_)},
                                                       {"SLURM_STEP_NUM_NODES", std::to_string(nodes_)},
                                                       {"SLURM_PROCID", std::to_string(node)},
                                                       {"SLURM_NODEID", std::to_string(node)},
                                                       {"SLURM_LOCALID", "0"}});
  launch.environment.insert(launch.environment.end(), environment.begin(), environment.end());
  const std::vector<int> processors = processors_of_test();
  const Pinned pinned(processors.empty()
                          ? processors
                          : std::vector<int>{processors[static_cast<std::size_t>(node) % processors.size()]});
  agents_[node].push_back(std::make_unique<Program>(launch));
}

std::vector<int> Agents::wait(double seconds) {
  std::vector<int> codes;
  for (auto& entry : agents_) codes.push_back(entry.second.back()->wait(seconds).exit_code);
  return codes;
}

std::string Agents::errors() {
  std::string text;
  for (const auto& entry : agents_)
    for (const auto& agent : entry.second) text += agent->errors();
  return text;
}

bool says(Agents& agents, const std::string& words) {
  return agents.node(0).errors().find(words) != std::string::npos;
}

void check_nothing_left(const std::string& run) {
  CHECK_FALSE(std::filesystem::exists(layout_folder(run) / "rendezvous.json"));
  CHECK_FALSE(std::filesystem::exists(layout_folder(run) / "lock.json"));
  check_no_process_left(run);
}

bool reaches(const std::string& run, long step, Agents& agents) {
  return reaches_step(agents.node(0), run, step);
}

bool hold_up_until(Agents& agents, const std::string& run, int node, const std::function<bool()>& condition) {
  const std::vector<pid_t> workers = workers_by_rank(agents.node(node), 1);
  REQUIRE_MESSAGE(workers.size() == 1, agents.errors());
  return hold_up_until(workers.front(), run, condition);
}

std::map<std::string, Agents> disturbed_runs(int nodes, const Settings& settings, long step,
                                             const std::vector<Disturbance>& disturbances) {
  std::map<std::string, Agents> runs;
  for (const Disturbance& disturbance : disturbances) {
    Agents& agents = runs.try_emplace(disturbance.run, nodes, disturbance.run, settings).first->second;
    REQUIRE_MESSAGE(reaches(disturbance.run, step, agents), agents.errors());
    const std::vector<pid_t> workers = agents.workers(disturbance.node);
    agents.node(disturbance.node).signal(disturbance.signal);
    if (!disturbance.is_for_workers) continue;
    for (const pid_t worker : workers) ::kill(worker, disturbance.signal);
  }
  return runs;
}

Ended run_as_one_agent(int nodes, const std::string& run, const Settings& settings) {
  std::vector<int> processors = processors_of_test();
  processors.resize(std::min<std::size_t>(processors.size(), static_cast<std::size_t>(nodes)));
  const Pinned pinned(processors);
  return run_program(layout_launch(run, with_agents_settings(settings)), ranks_patience);
}

}  // namespace scaletrain
