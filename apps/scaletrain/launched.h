// `run` in a process that a launcher started as one of many ranks.
#pragma once

#include <string>
#include <vector>

#include "base/exit_code.h"
#include "launch/launcher.h"
#include "launch/signals.h"

namespace scaletrain {

// The command line, and what the environment says.
struct LaunchedCommand {
  std::string config;
  std::vector<std::string> overrides;
  std::string resume;
  LauncherPlace place;
  const InterruptWatcher& interrupts;
};

// Until the run has ended, with the exit code of what ended it on every rank; each prints why. Rank 0 holds the run's
// lock, prepares the run folder and serves the rendezvous.
//
// What is wrong with the config or the command line itself is thrown as a UserError, since every rank finds it by
// itself; what may be wrong on one host alone (paths, memory, the interface) is told to the others before the rank
// leaves.
ExitCode run_as_launched_rank(const LaunchedCommand& command);

}  // namespace scaletrain
