#include "launch/coordination/restart_policy.h"

namespace scaletrain {

RestartPolicy::Decision RestartPolicy::failed(std::int64_t step) {
  return ++failures_[step] >= failures_at_one_step ? Decision::no_progress : Decision::restart;
}

RestartPolicy::Decision RestartPolicy::lost_places(std::int64_t step) {
  return ++losses_[step] >= losses_at_one_step ? Decision::no_progress : Decision::restart;
}

RestartPolicy::Decision RestartPolicy::restarting(std::int64_t from_step) {
  resuming(from_step);
  if (used_ >= max_restarts_) return Decision::used_up;
  ++used_;
  return Decision::restart;
}

void RestartPolicy::resuming(std::int64_t from_step) {
  if (from_step <= furthest_) return;
  furthest_ = from_step;
  used_ = 0;
  // What failed at the checkpoint's own step came after it: it stays.
  failures_.erase(failures_.begin(), failures_.lower_bound(from_step));
  losses_.erase(losses_.begin(), losses_.lower_bound(from_step));
}

}  // namespace scaletrain
