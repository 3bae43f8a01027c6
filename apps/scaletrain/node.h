// `run` in a process that is the agent of one node of several.
#pragma once

#include "base/exit_code.h"
#include "launched.h"

namespace scaletrain {

// Until the run has ended, with the same exit code on every node. The agent of node 0 holds the run's lock, prepares
// the run folder, serves the rendezvous, coordinates and tells people what happens; the others have their log files,
// and print a line when something went wrong.
//
// What is wrong with the config or the layout is every node's to find and node 0's to print; what only one host has is
// told to the others before it leaves.
ExitCode run_as_node_agent(const LaunchedCommand& command);

}  // namespace scaletrain
