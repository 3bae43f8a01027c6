// The agent: starts the workers of this host, watches them, forwards signals and restarts them from the newest good
// checkpoint. Workers stand and fall together: when one fails the others are ended, and all start anew.
//
// What ended workers mean:
//   all exit 0, or all 75            the run's own result
//   one exits 2, 3, 5, 6             the run's own result, told or not: libraries do not end with these
//   one exits 1 and has said why     the run's own result; libraries exit with 1 as well, and say nothing here
//   exit 4, any other code, a signal, or a hang (killed by the agent)   restart from next_start(), while restarts are
//   left
// Of several failures the first that no other explains is the cause: a worker that says 4 may only have lost its peer,
// so the others get a moment to say more.
// A step at which workers fail three times ends the run with 6; used-up restarts, which later checkpoints forgive, end
// it with 4 (restart_policy.h). After SIGTERM, SIGUSR1 or SIGINT nothing is restarted any more: the workers save and
// say 75; if one dies instead that also gives 75, since a new run resumes from the last checkpoint (or from the
// beginning, if there was none to lose). Workers that are still starting up have nothing to save and are ended at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/exit_code.h"
#include "comm/rendezvous.h"
#include "launch/crew.h"
#include "launch/signals.h"
#include "telemetry/log.h"
#include "train/run_folder.h"

namespace scaletrain {

struct AgentOptions {
  RunPaths paths;
  StartPoint start;
  std::string lock_id;
  std::int64_t world = 1;  // workers, all on this host; each gets its share of the processors
  RendezvousAddress rendezvous{.host = "127.0.0.1"};  // where it serves them; numeric, and port 0 for any free one
  std::int64_t max_restarts = 3;
  double heartbeat = 60.0;      // seconds in which nobody moves, or a worker says nothing: a hang
  double settle_seconds = 2.0;  // see CrewOptions
  Log& log;                     // agent_log_path and standard error
  const InterruptWatcher& interrupts;
  std::filesystem::path executable = "/proc/self/exe";
  // The start after a failure; empty: restart_point of run_folder.h.
  std::function<StartPoint(const StartPoint& before)> next_start{};
  // A worker's command line after the program's name, without --channel; empty: worker_arguments.
  std::function<std::vector<std::string>(const StartPoint&, const WorkerSlot&)> arguments{};
  // Whether this agent still holds the run's lock (asked about once a second); empty: always.
  std::function<bool()> holds_lock{};
  std::int64_t stages = 1;  // of the pipeline
  // Hears why the run has ended before run_agent returns the code.
  std::function<void(ExitCode, const std::string& reason)> ended{};
};

// Supervises until the run has ended; no worker is alive when it returns or throws. To be called from a thread that
// lives as long as the process (main's): the kernel kills the workers when the thread that started them ends.
// block_interrupt_signals() comes first. PeerError: the worker's program cannot be started, or the lock was lost.
// InputError: next_start found no usable checkpoint.
ExitCode run_agent(const AgentOptions& options);

// What run_agent hands to each start's crew.
CrewOptions crew_options(const AgentOptions& options, const StartPoint& start);

// "logs/agent-00.log"
std::filesystem::path agent_log_path(const RunPaths& paths, int node);

}  // namespace scaletrain
