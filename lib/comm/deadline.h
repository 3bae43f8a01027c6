// The end of a wait that was given in seconds.
#pragma once

#include <algorithm>

#include "base/clock.h"

namespace scaletrain {

// The moment so many seconds after `since`; never wraps, however many.
inline MonotonicTime deadline_after(double seconds, MonotonicTime since = monotonic_now()) {
  constexpr double longest = 1e9;  // 30 years; the clock's own range is 292
  return since + std::chrono::duration_cast<MonotonicTime::duration>(
                     std::chrono::duration<double>(std::clamp(seconds, 0.0, longest)));
}

}  // namespace scaletrain
