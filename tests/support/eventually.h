// For tests that wait for other threads and processes.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "base/clock.h"

namespace scaletrain {

// Waits until the condition holds, at most so many seconds; whether it did. A busy machine takes its time.
inline bool eventually(const std::function<bool()>& condition, double seconds = 60.0) {
  const MonotonicTime start = monotonic_now();
  while (!condition()) {
    if (seconds_since(start) > seconds) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace scaletrain
