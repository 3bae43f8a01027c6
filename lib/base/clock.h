// Time as the program may use it: durations come from the monotonic clock, so that a clock moved by an hour has no
// effect; wall-clock time is written for people only.
#pragma once

#include <chrono>
#include <string>

namespace scaletrain {

using MonotonicTime = std::chrono::steady_clock::time_point;

inline MonotonicTime monotonic_now() {
  return std::chrono::steady_clock::now();
}
inline double seconds_since(MonotonicTime start) {
  return std::chrono::duration<double>(monotonic_now() - start).count();
}

// UTC, ISO 8601 with seconds: "2025-01-31T12:00:00Z".
std::string wall_clock_text();

}  // namespace scaletrain
