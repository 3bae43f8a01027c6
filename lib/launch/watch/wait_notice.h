// When a wait for others is told to people: after a while, then seldom.
#pragma once

namespace scaletrain {

class WaitNotice {
 public:
  // In seconds of the wait.
  explicit WaitNotice(double first = 10.0, double period = 60.0) : next_(first), period_(period) {}

  // True once for each time that has come.
  bool is_due(double waited) {
    if (waited < next_) return false;
    next_ = waited + period_;
    return true;
  }

 private:
  double next_;
  double period_;
};

// The same for calls to the storage that do not come back, one after the other.
class StorageNotice {
 public:
  explicit StorageNotice(double heartbeat) : heartbeat_(heartbeat), notice_(made()) {}

  // For how long the call under way has lasted; 0 while there is none.
  bool is_due(double waited) {
    if (waited < waited_) notice_ = made();
    waited_ = waited;
    return notice_.is_due(waited);
  }

 private:
  WaitNotice made() const { return WaitNotice(heartbeat_, 5.0 * heartbeat_); }

  double heartbeat_;
  WaitNotice notice_;
  double waited_ = 0.0;
};

}  // namespace scaletrain
