// One worker as its crew sees it. Internal to crew.cpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/exit_code.h"
#include "base/strong.h"
#include "launch/worker_channel.h"
#include "launch/worker_process.h"

namespace scaletrain {

// How long a worker has been silent. Counts only time in which the agent itself was running: a machine that slept, or a
// job that was stopped as a whole and continued, is no hang.
class Silence {
 public:
  explicit Silence(double longest_tick) : longest_tick_(longest_tick) {}

  // To be called once per tick. others_wait: another worker is starting up or at its storage, so that this one may
  // stand in a collective for as long as that takes; its lines must keep coming.
  void observe(const WorkerStatus& status, bool others_wait) {
    const double elapsed = std::min(seconds_since(last_look_), 2 * longest_tick_);
    last_look_ = monotonic_now();
    const bool speaks = status.lines != seen_.lines;
    const bool moves = std::pair(status.progress, status.step) != std::pair(seen_.progress, seen_.step);
    const bool is_new_state = status.waiting != seen_.waiting;
    seen_ = status;
    mute_ = speaks ? 0.0 : mute_ + elapsed;
    if (status.waiting || moves || is_new_state) {
      still_ = 0.0;
    } else if (!others_wait) {
      still_ += elapsed;
    }
  }
  // What it may have waited for has ended: it has a heartbeat again to go on.
  void forgive() { still_ = 0.0; }
  double seconds() const { return std::max(mute_, still_); }
  double mute_seconds() const { return mute_; }
  double still_seconds() const { return still_; }

 private:
  double longest_tick_;
  double mute_ = 0.0;   // without a line
  double still_ = 0.0;  // working, without progress
  WorkerStatus seen_;
  MonotonicTime last_look_ = monotonic_now();
};

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

// A worker, and what is known of it.
struct CrewMember {
  CrewMember(Rank of, const WorkerLaunch& launch, ChannelPair pair, double tick)
      : rank(of), process(launch, pair.worker), channel(std::move(pair.agent)), silence(tick) {}

  const WorkerStatus& status() const { return channel.status(); }
  bool lives() const { return !end; }

  Rank rank;
  WorkerProcess process;
  WorkerChannel channel;
  Silence silence;
  bool is_open = true;
  std::optional<ProcessEnd> end;
  bool killed = false;  // by us, for another's sake
  bool hung = false;
  bool was_stopped = false;     // how it was when that was seen
  std::int64_t hang_step = -1;  // and where
  std::string hang_text{};
  std::int64_t failed_at = -1;  // in which look its failure was first seen; -1: none

  // By its own report, or else at its last line.
  std::optional<std::string> collective() const {
    if (status().dumped) return status().dumped->empty() ? std::nullopt : status().dumped;
    return status().collective ? std::optional(status().collective->text) : std::nullopt;
  }

  Failure failure() const {
    const Failure told = status().error ? failure_of(status().error->kind) : Failure::none;
    if (hung) return Failure::own;
    if (!end || killed) return told;
    if (!end->exit_code) return Failure::own;
    const auto code = static_cast<ExitCode>(*end->exit_code);
    return std::max(told, failure_of(code));
  }
};

}  // namespace scaletrain
