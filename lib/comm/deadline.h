// The end of a wait that was given in seconds, and how such a wait goes.
#pragma once

#include <algorithm>
#include <chrono>

#include "base/clock.h"

namespace scaletrain {

// The moment so many seconds after `since`; never wraps, however many.
inline MonotonicTime deadline_after(double seconds, MonotonicTime since = monotonic_now()) {
  constexpr double longest = 1e9;  // 30 years; the clock's own range is 292
  return since + std::chrono::duration_cast<MonotonicTime::duration>(
                     std::chrono::duration<double>(std::clamp(seconds, 0.0, longest)));
}

// A wait for a message of another process is made in turns of this length, and looks between them whether its peer is
// still there.
inline constexpr auto health_interval = std::chrono::milliseconds(200);
// A turn takes longer than this only if this process moved gigabytes in it, or stood still, as in a job that is
// suspended; then its peers may have stood still as well. The wait lasts so much longer.
inline constexpr auto longest_turn = std::chrono::seconds(2);

}  // namespace scaletrain
