// `run` in a process that a launcher started as one of many ranks.
#pragma once

#include "base/exit_code.h"
#include "config/load.h"
#include "launch/launcher.h"
#include "launch/signals.h"
#include "train/run_folder.h"

namespace scaletrain {

struct LaunchedRun {
  const LoadedConfig& loaded;
  RunPaths paths;  // opened
  ResumeRequest resume;
  LauncherPlace place;
  const InterruptWatcher& interrupts;
};

// Until the run has ended, with the exit code of what ended it on every rank; each prints why. Rank 0 holds the run's
// lock, prepares the run folder and serves the rendezvous.
ExitCode run_as_launched_rank(const LaunchedRun& run);

}  // namespace scaletrain
