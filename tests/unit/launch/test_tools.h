// Small tools that the tests of launch share.
#pragma once

#include <chrono>
#include <csignal>
#include <ctime>
#include <functional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "launch/host/signals.h"

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

inline bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Signals must be blocked before the watcher is made: base class first. What was sent to an earlier scene, and came too
// late for it, is nothing to this one.
struct BlockedSignals {
  BlockedSignals() {
    block_interrupt_signals();
    sigset_t late;
    ::sigemptyset(&late);
    for (const int number : {SIGTERM, SIGUSR1, SIGINT, SIGHUP}) ::sigaddset(&late, number);
    const timespec at_once{};
    while (::sigtimedwait(&late, nullptr, &at_once) > 0) {
    }
  }
};

}  // namespace scaletrain
