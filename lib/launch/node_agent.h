// The agent of one node of several: runs its share of every attempt as the coordinator orders (coordination.h), reports
// how it ended, and leaves when the run is over or when it is cut off from the coordinator.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "base/exit_code.h"
#include "launch/crew.h"
#include "launch/node_link.h"
#include "launch/signals.h"
#include "telemetry/log.h"
#include "train/run_folder.h"

namespace scaletrain {

struct NodeAgentOptions {
  std::int64_t node = 0;
  RunPaths paths;
  NodeLink& link;
  double heartbeat = 60.0;                    // seconds
  std::optional<std::int64_t> data_degree{};  // the config's; nothing: auto
  std::int64_t stages = 1;                    // of the pipeline
  std::string address{};                      // numeric, of this host, that the data planes bind to; empty: the
                                              // workers find it
  Log& log;
  const InterruptWatcher& interrupts;
  std::function<bool()> holds_lock{};  // node 0's
  std::function<std::string(const WorkersRendezvous&)>
      workers_secret{};  // NodeWorld's; asked where there are several ranks
  // Runs this node's workers; empty: run_crew.
  std::function<Attempt(const CrewOptions&)> run_workers{};
};

// Until the run is over, with the code that the coordinator gives, or 75 when cut off; no worker is alive then. Of an
// error (as run_crew's) the coordinator is told. To be called from a thread that lives as long as the process.
Departure run_node_agent(const NodeAgentOptions& options);

}  // namespace scaletrain
