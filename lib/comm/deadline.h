// The end of a wait that was given in seconds.
#pragma once

#include <algorithm>

#include "base/clock.h"

namespace scaletrain {

// The moment `seconds` from now; never wraps, however many seconds.
inline MonotonicTime deadline_after(double seconds) {
  constexpr double longest = 1e9;  // 30 years; the clock's own range is 292
  return monotonic_now() + std::chrono::duration_cast<MonotonicTime::duration>(
                               std::chrono::duration<double>(std::clamp(seconds, 0.0, longest)));
}

}  // namespace scaletrain
