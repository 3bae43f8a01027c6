// A real SLURM cluster of virtual nodes (scripts/slurm/testbed.sh) and jobs of scripts/slurm/train.sbatch on it. What
// is done to jobs is done by threads, in which no assertion may stand: they throw.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "process/ranks.h"

namespace scaletrain {

inline const std::filesystem::path slurm_scripts =
    std::filesystem::path(SCALETRAIN_SOURCE_FOLDER) / "scripts" / "slurm";

inline constexpr int node_count = 17;

// testbed.sh's own commands.
Ended testbed_script(std::vector<std::string> arguments);

// Needs root.
class Testbed {
 public:
  Testbed();
  ~Testbed();
  Testbed(const Testbed&) = delete;
  Testbed& operator=(const Testbed&) = delete;

  static bool is_root();
  const std::string& problem() const { return problem_; }  // why it could not be started; empty: it was
  std::pair<std::string, std::string> variable() const { return {"SLURM_CONF", (folder_ / "slurm.conf").string()}; }
  void kill_node(const std::string& node) const { testbed_script({"node-down", folder_.path().string(), node}); }
  void start_node(const std::string& node) const { testbed_script({"node-up", folder_.path().string(), node}); }

 private:
  TempFolder folder_;
  std::string problem_;
};
// The test program's; started by the first call.
const Testbed& testbed();

// A program of SLURM, by name.
std::string ask(const std::string& program, std::vector<std::string> arguments);

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

using Environment = std::vector<std::pair<std::string, std::string>>;

class Job {
 public:
  // Options of sbatch; settings of the run.
  Job(const std::string& run, const Settings& options, const Settings& settings, const Environment& environment = {});
  // `training` under SLURM: `scaletrain run`, to the run's folder.
  Job(const std::string& run, const Settings& options, const Launch& training, const Environment& environment = {});
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const std::string& id() const { return id_; }
  const std::filesystem::path& folder() const { return folder_; }
  std::string output() const;
  // "JobState", "Restarts", "ExitCode" ... A controller that is busy is asked again.
  std::string property(const std::string& name) const;
  // Those that it had last, the batch script's first.
  std::vector<std::string> nodes() const;
  bool wait_for_step(long step, double seconds = 180.0) const;
  bool wait_for_text(const std::string& text, double seconds) const;
  bool wait_for_end(double seconds) const;
  bool wait_for_start(double seconds) const;
  bool is_over() const;

 private:
  std::string state() const;
  std::filesystem::path log() const { return folder_.string() + ".out"; }

  std::filesystem::path folder_;
  std::string id_;
};

void wait_for_ends(const std::vector<const Job*>& jobs, double seconds);

// Step and data degree of every start and restart.
std::vector<std::pair<long, long>> starts_of(const Job& job);
std::vector<long> replicas_of_starts(const Job& job);

// Kills the agent of a job that has this variable ("SLURM_NODEID=1") in its environment.
void kill_agent(const Job& job, const std::string& variable);

// Nodes by number, the last included.
Settings on_nodes(int first, int last);
// Another may take the place of one that is lost.
Settings count_of_nodes(int count, int first, int last);
Settings with(Settings settings, const Settings& more);

}  // namespace scaletrain
