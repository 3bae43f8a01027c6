// Signals as the main thread of a program has them, for tests that send some.
#pragma once

#include <csignal>
#include <ctime>

#include "host/process/signals.h"

namespace scaletrain {

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
