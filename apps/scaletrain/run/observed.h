// What other threads of a worker read of its training: for its agent, and for the report of a hang.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "base/process/work_count.h"
#include "comm/collective/collective_status.h"
#include "launch/watch/hang_report.h"
#include "launch/workers/worker_channel.h"

namespace scaletrain {

struct Observed {
  WorkCount work{0};
  std::atomic<std::int64_t> step{-1};
  CollectiveStatus collectives;
};

// "rank 3, step 17: in group data (ranks 1, 3): all_reduce #42 since 59.1 s"
HangPlace place_of(std::int64_t rank, const Observed& observed);

// How fast this rank is itself: what its steps last, less what it waits for others in them. Evaluations, which are told
// with the step they follow, and saves are no part of a step. By one thread.
class PaceMeter {
 public:
  explicit PaceMeter(const CollectiveStatus& status) : status_(status) {}

  // As the trainer's hook; true when a step has been added to pace().
  bool entered(std::int64_t step, bool waiting);
  const Pace& pace() const { return pace_; }

 private:
  const CollectiveStatus& status_;
  Pace pace_;
  bool is_measuring_ = false;
  std::int64_t step_ = -1;
  double waited_ = 0.0;
  MonotonicTime since_{};
};

}  // namespace scaletrain
