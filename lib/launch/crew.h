// The workers of one start: begun together, watched together, ended together.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/exit_code.h"
#include "launch/agent.h"
#include "launch/worker_channel.h"

namespace scaletrain {

// What one start came to.
struct Attempt {
  // The run's own result; nothing: the workers failed in a way that a restart may mend.
  std::optional<ExitCode> result;
  bool started = true;                 // false: interrupted before all came to their first step
  std::int64_t step = 0;               // where the cause was last seen
  std::string description{};           // "worker 123 was killed by signal 9 (Killed) at step 17"
  std::optional<std::string> message;  // what the cause, or else the first that lost it, told of its error
};

// Starts options.world workers and returns when all have ended. Throws PeerError when one cannot be started or the lock
// is lost; none is alive then either.
Attempt run_crew(const AgentOptions& options, const StartPoint& start);

// PeerError, if options.holds_lock denies it.
void require_lock(const AgentOptions& options);

}  // namespace scaletrain
