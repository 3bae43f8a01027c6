// An agent: it has the workers of its place, starts them as the coordinator orders (messages.h), watches them,
// hands signals on, reports how they ended, and leaves when the run is over or when it is cut off from the coordinator.
// A run has one agent or many, on one host or on many, with one worker each or with more: it is all one. The first
// place's agent has the coordinator beside it, on a thread of its own.
//
// Workers stand and fall together: when one fails the others are ended, and all start anew. What their ends mean:
//   all exit 0, or all 75            the run's own result
//   one exits 2, 3, 5, 6             the run's own result, told or not: libraries do not end with these
//   one exits 1 and has said why     the run's own result; libraries exit with 1 as well, and say nothing here
//   exit 4, any other code, a signal, or a hang (killed by the agent)   restart from the newest good checkpoint, while
//   restarts are left
// Of several failures the first that no other explains is the cause: a worker that says 4 may only have lost its peer,
// so the others get a moment to say more. After SIGTERM, SIGUSR1 or SIGINT nothing is restarted any more: the workers
// save and say 75; if one dies instead that also gives 75, since a new run resumes from the last checkpoint (or from
// the beginning, if there was none to lose). Workers that are still starting up have nothing to save and are ended at
// once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/process/exit_status.h"
#include "host/near_processors.h"
#include "host/process/signals.h"
#include "launch/agent/agent_link.h"
#include "launch/coordination/coordinator.h"
#include "launch/meeting/meeting.h"
#include "launch/workers/worker_group.h"
#include "telemetry/log.h"
#include "train/start/run_folder.h"

namespace scaletrain {

struct AgentOptions {
  RunPaths paths;
  const Meeting& meeting;
  double heartbeat = 60.0;                    // seconds
  std::optional<std::int64_t> data_degree{};  // the config's; nothing: auto
  std::string address{};                      // numeric, of this host, that the data planes bind to; empty: the
                                              // workers find it
  std::string gpus{};                         // what tells the GPUs that are seen here from others;
                                              // empty: the workers compute on none
  std::int64_t num_gpus = 0;                  // that are seen here
  std::vector<std::optional<NearProcessors>> near_gpus{};  // see GroupOptions
  Log& log;
  const InterruptWatcher& interrupts;
  std::string command = "start it again";  // that goes on, for people
  std::function<bool()> holds_lock{};      // the first place's; asked about once a second. Empty: always
  // Looks at the first share of this place before a worker starts; throws what is wrong with its host.
  std::function<void(const PlaceShare&)> check_host{};
  // The same before the workers of every round are started, and after they have failed without a cause of their own:
  // what would bring their failure again at once takes no restart. What it throws then as a UserError is the run's end.
  std::function<void(const PlaceShare&)> check_round{};

  // For tests: see GroupOptions; empty run_workers: run_worker_group.
  std::filesystem::path executable = "/proc/self/exe";
  std::function<std::vector<std::string>(const StartPoint&, const WorkerSlot&)> arguments{};
  double settle_seconds = 2.0;
  double verdict_seconds = 2.0;  // for which a place that cannot take part waits to hear whether no other can either
  std::function<RoundResult(const GroupOptions&)> run_workers{};
};

// Until the run is over, with the status that the coordinator gives, or when cut off (75; 4 where each place has one
// worker, which its launcher has to start again); no worker is alive then. An error (as run_worker_group's) is thrown
// on: the coordinator hears of it from AgentLink::leave. To be called from a thread that lives as long as the process
// (main's): the kernel kills the workers when the thread that started them ends. block_interrupt_signals() comes first.
ExitStatus follow_orders(const AgentOptions& options, AgentLink& link);

struct AgentEnd {
  ExitStatus status{};
  bool is_own = false;         // nobody else knows why
  bool is_cut_off = false;     // the coordinator's word, which was to come, was not heard
  std::exception_ptr error{};  // what `status` tells of, where an error ended it
};
// The whole of an agent's part, with its farewell. problem: why this place cannot take part, which is all that it has
// to say then; where the coordinator ends the run for the same reason, it is not its own.
AgentEnd run_agent(const AgentOptions& options, const ExitStatus& problem = {});

// The first place's agent, and the coordinator beside it, which serves the others until they have left. It logs why the
// run has ended, but for an error of its own.
AgentEnd run_first_agent(const AgentOptions& options, Coordinator& coordinator);

// "logs/agent-00.log"; of a place with one worker that is not the first, its rank's log: thousands of ranks need no
// more files for their agents.
std::filesystem::path agent_log_path(const RunPaths& paths, const LauncherPlace& place);

}  // namespace scaletrain
