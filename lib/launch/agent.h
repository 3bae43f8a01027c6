// The agent: starts the worker of this host, watches it, forwards signals and restarts it from the newest good
// checkpoint.
//
// What an ended worker means:
//   exit 0, 1, 2, 3, 5, 6, 75   the run's own result, returned as it is
//   exit 4, any other code, a signal, or a hang (killed by the agent)   restart from next_start(), while restarts are
//   left
// A step at which the worker fails three times ends the run with 6; used-up restarts end it with 4. After SIGTERM,
// SIGUSR1 or SIGINT nothing is restarted any more: the worker saves and says 75; one that dies instead also gives 75,
// since a new run resumes from the last checkpoint (or from the beginning, if there was none to lose). A worker that is
// still starting up has nothing to save and is ended at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/exit_code.h"
#include "launch/signals.h"
#include "telemetry/log.h"
#include "train/run_folder.h"

namespace scaletrain {

struct AgentOptions {
  RunPaths paths;
  StartPoint start;
  std::string lock_id;
  std::int64_t max_restarts = 3;
  double heartbeat = 60.0;  // seconds without progress that are a hang
  Log& log;                 // agent_log_path and standard error
  const InterruptWatcher& interrupts;
  std::filesystem::path executable = "/proc/self/exe";
  // The start after a failure; empty: restart_point of run_folder.h.
  std::function<StartPoint(const StartPoint& before)> next_start{};
  // The worker's command line after the program's name, without --channel; empty: worker_arguments.
  std::function<std::vector<std::string>(const StartPoint&)> arguments{};
  // Whether this agent still holds the run's lock (asked about once a second); empty: always.
  std::function<bool()> holds_lock{};
};

// Supervises until the run has ended; no worker is alive when it returns or throws. To be called from a thread that
// lives as long as the process (main's): the kernel kills the worker when the thread that started it ends.
// block_interrupt_signals() comes first. PeerError: the worker's program cannot be started, or the lock was lost.
// InputError: next_start found no usable checkpoint.
ExitCode run_agent(const AgentOptions& options);

// worker --run-folder DIR --lock ID --generation G [--from CHECKPOINT [--asked PATH]]
std::vector<std::string> worker_arguments(const AgentOptions& options, const StartPoint& start);

// "logs/agent-00.log"
std::filesystem::path agent_log_path(const RunPaths& paths, int node);

}  // namespace scaletrain
