// Whether ended workers are started again: pure decisions, for the agent of one host and for the coordinator of
// several.
//
// Restarts are a budget against failures that come faster than progress. A restart is forgiven as soon as a checkpoint
// beyond every earlier one was committed after it: a run that goes on saving may be restarted for ever, one that does
// not ends after max_restarts. And whatever was saved in between, a step at which workers failed three times is given
// up; those that a later checkpoint has left behind are forgotten.
//
// A node that an elastic run has lost is no failure of the program: preemptible nodes come and go as they are wanted
// elsewhere. It takes nothing from the budget. But a step whose computing kills nodes would do so for ever: a step at
// which ten were lost, without a checkpoint beyond it, is given up too.
#pragma once

#include <cstdint>
#include <map>

namespace scaletrain {

class RestartPolicy {
 public:
  static constexpr int failures_at_one_step = 3;
  static constexpr int losses_at_one_step = 10;

  enum class Decision {
    restart,
    no_progress,  // exit 6
    used_up,      // exit 4
  };

  // first_step: of the start point that the run begins with.
  RestartPolicy(std::int64_t max_restarts, std::int64_t first_step)
      : max_restarts_(max_restarts), furthest_(first_step) {}

  // A start has failed at this step, for a reason that a restart may mend; to be called once per start. no_progress, or
  // restart: then restarting() is asked.
  Decision failed(std::int64_t step);
  // A start has ended at this step because nodes were lost, in an elastic run. no_progress, or restart: then
  // resuming() is told.
  Decision lost_places(std::int64_t step);
  // Before a restart from the newest checkpoint, which is of this step: used_up, or restart, which is counted.
  Decision restarting(std::int64_t from_step);
  // The same before a start that is no restart after a failure.
  void resuming(std::int64_t from_step);

  // Those that no checkpoint has forgiven.
  std::int64_t used() const { return used_; }
  std::int64_t max_restarts() const { return max_restarts_; }

 private:
  std::int64_t max_restarts_;
  std::int64_t furthest_;  // step of the furthest checkpoint so far
  std::int64_t used_ = 0;
  std::map<std::int64_t, int> failures_;  // by step
  std::map<std::int64_t, int> losses_;
};

}  // namespace scaletrain
