// `run` in this process: the agent of its place.
#pragma once

#include <string>
#include <vector>

#include "base/process/exit_code.h"
#include "host/launcher.h"
#include "host/process/signals.h"

namespace scaletrain {

// The command line, and what the environment says.
struct AgentCommand {
  std::string config;
  std::vector<std::string> overrides;
  std::string resume;
  LauncherPlace place;
  const InterruptWatcher& interrupts;
};

// Until the run has ended, with the same exit code at every place. The agent of the first place holds the run's lock,
// prepares the run folder, serves the rendezvous, coordinates and tells people what happens; the others have their
// logs, and print a line when something went wrong. Errors of an agent without others are thrown.
//
// An agent that finds the config, the command line or its host (paths, memory, the interface) wrong tells the others
// before it leaves, as long as it can read which run folder is meant: they meet there. Where it cannot (the file is
// missing on its host and no --set names the folder), the others wait until their launcher ends them or the time for
// coming together is over. The first place prints a reason in full, and so does the one that alone has it; the others
// print a line.
ExitCode run_as_agent(const AgentCommand& command);

}  // namespace scaletrain
