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

}  // namespace scaletrain
