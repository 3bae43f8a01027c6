// What the process tests of several ranks share: a tiny model of four layers, its run on one rank, and comparisons.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tiny_run.h"

namespace scaletrain {

// For what takes seconds on an idle machine.
inline constexpr double ranks_patience = 300.0;

// Steps of a comparison: 10, or what SCALETRAIN_SOAK_STEPS says.
int layout_steps();

using Settings = std::vector<std::string>;

// `run config.yaml` with the four-layer model and these settings. Run folders are given by their whole path, so that
// every process that works for one is found by it.
std::vector<std::string> layout_arguments(const std::string& run, const Settings& settings);
Launch layout_launch(const std::string& run, const Settings& settings);
std::filesystem::path layout_folder(const std::string& run);

// The trajectory of the four-layer model on one rank, trained once.
const Trajectory& one_rank();

// Each step's and evaluation's loss within 1e-5 of the one-rank run's, relative; all steps are there.
void check_same_losses(const std::string& run);
void check_same_losses(const std::string& run, const Trajectory& expected, double tolerance);
void check_no_process_left(const std::string& run);

// False if the process that writes the run's metrics, or watches who does, has ended before.
bool reaches_step(Program& process, const std::string& run, long step);
// The agent's workers in the order of their ranks, once there are so many; others if it has ended.
std::vector<pid_t> workers_by_rank(Program& agent, std::size_t count);

// Whether SIGTERM and SIGUSR1 are requests to leave for this process; until it has come so far they end it.
bool takes_interruptions(pid_t process);

// A TCP socket of a process, as /proc/net spells it.
struct TcpSocket {
  std::string local_address{};
  bool is_listening = false;
  bool is_connected = false;
};
std::vector<TcpSocket> tcp_sockets_of(pid_t process);
bool is_connected(pid_t process);

// Holds a rank of a run up until the condition is met, so that the run cannot end before: it is stopped, and let go of
// for a step every two seconds, so that under heartbeats of six and more nobody takes it for hung. False when the time
// is over.
bool hold_up_until(pid_t worker, const std::string& run, const std::function<bool()>& condition,
                   double seconds = ranks_patience);

// The processes of a launcher: `world` times the program, with torchrun's variables.
class LaunchedRanks {
 public:
  LaunchedRanks(int world, const std::string& run, const Settings& settings);
  // None yet: they are started one by one.
  explicit LaunchedRanks(int world) : world_(world) {}
  void start(int rank, const std::string& run, const Settings& settings,
             const std::vector<std::pair<std::string, std::string>>& environment = {},
             const std::string& config = "config.yaml");
  // In the order of their starts.
  Program& rank(int index) { return *ranks_.at(static_cast<std::size_t>(index)); }
  // Exit codes.
  std::vector<int> wait(double seconds = ranks_patience);
  // All that they said on standard error.
  std::string errors();

 private:
  int world_;
  std::vector<std::unique_ptr<Program>> ranks_;
};

}  // namespace scaletrain
