// One worker as its group sees it. Internal to worker_group.cpp and group_verdict.cpp.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/numbers/strong.h"
#include "base/process/exit_code.h"
#include "host/process/child_process.h"
#include "launch/workers/worker_channel.h"

namespace scaletrain {

// How bad the news of a worker is; of several, the worst explains the others.
enum class Failure {
  none,       // lives, or ended as a run should
  lost_peer,  // says that another is gone
  own,        // anything else
};

inline Failure failure_of(ExitCode code) {
  if (code == ExitCode::finished || code == ExitCode::interrupted) return Failure::none;
  return code == ExitCode::peer ? Failure::lost_peer : Failure::own;
}

// What is known of a worker.
struct MemberState {
  Rank rank{0};
  pid_t pid = 0;
  WorkerStatus status{};
  std::optional<ProcessEnd> end{};
  bool killed = false;  // by us, for another's sake
  bool hung = false;
  bool was_stopped = false;     // how it was when that was seen
  std::int64_t hang_step = -1;  // and where
  std::string hang_text{};
  std::int64_t failed_at = -1;  // in which look its failure was first seen; -1: none

  bool lives() const { return !end; }

  // By its own report, or else at its last line.
  std::optional<std::string> collective() const {
    if (status.dumped) return status.dumped->empty() ? std::nullopt : status.dumped;
    return status.collective ? std::optional(status.collective->text) : std::nullopt;
  }

  Failure failure() const {
    const Failure told = status.error ? failure_of(status.error->kind) : Failure::none;
    if (hung) return Failure::own;
    if (!end || killed) return told;
    if (!end->exit_code) return Failure::own;
    const auto code = static_cast<ExitCode>(*end->exit_code);
    return std::max(told, failure_of(code));
  }
};

// And the worker itself.
struct GroupMember : MemberState {
  GroupMember(Rank of, const ChildLaunch& launch, ChannelPair pair)
      : process(launch, pair.worker), channel(std::move(pair.agent)) {
    rank = of;
    pid = process.pid();
  }

  // Takes what it has said by now.
  void listen() {
    if (is_open) is_open = channel.drain();
    status = channel.status();
  }

  ChildProcess process;
  WorkerChannel channel;
  bool is_open = true;
};

}  // namespace scaletrain
