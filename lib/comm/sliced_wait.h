// A wait for a key that is made in slices, so that something can be done or looked at in between.
#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include "base/clock.h"

namespace scaletrain {

// wait(seconds) looks for a value for so long; it is called until one is found or all of `seconds` have passed, each
// time for `slice` at most, and at least once. between() comes after each call that found nothing, the last one too:
// what it throws ends the wait. A slice in which this process stood still, as in a job that is suspended, counts as one
// of the usual length: who is waited for may have stood still as well.
template <class Wait, class Between>
std::optional<std::string> wait_in_slices(double seconds, double slice, Wait wait, Between between) {
  constexpr double longest_delay = 1.0;
  double left = std::max(0.0, seconds);
  for (;;) {
    const MonotonicTime begin = monotonic_now();
    if (std::optional<std::string> value = wait(std::min(left, slice))) return value;
    between();
    const double elapsed = seconds_since(begin);
    const bool stood_still = elapsed > slice + longest_delay;
    if (left <= slice && (!stood_still || left <= 0.0)) return std::nullopt;
    left = std::max(0.0, left - (stood_still ? slice : elapsed));
  }
}

}  // namespace scaletrain
