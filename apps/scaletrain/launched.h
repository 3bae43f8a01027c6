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
// A rank that finds the config, the command line or its host (paths, memory, the interface) wrong tells the others
// before it leaves, as long as it can read which run folder is meant: they meet there. Where it cannot (the file is
// missing on its host and no --set names the folder), the others wait until their launcher ends them or the time for
// coming together is over. Rank 0 prints a reason in full, and so does the rank that alone has it; the others print a
// line.
ExitCode run_as_launched_rank(const LaunchedCommand& command);

}  // namespace scaletrain
