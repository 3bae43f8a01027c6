// Interruption by a signal, without signal handlers.
//
// SIGTERM, SIGUSR1, SIGINT and SIGHUP ask a run to finish its step, save and leave. They are blocked in every thread
// and read by one dedicated thread from a signalfd. No handler ever runs on a compute thread that is to go on: code
// generated at run time (matrix-product kernels) may keep data below the stack pointer, where a handler's frame would
// overwrite it.
#pragma once

#include <atomic>
#include <functional>

#include "base/file.h"
#include "base/process/guarded_thread.h"

namespace scaletrain {

// Blocks SIGTERM, SIGUSR1, SIGINT and SIGHUP in the calling thread and in every thread and process it starts from now
// on: to be called first in main. A signal that arrives before there is a watcher stays pending and is seen by it. Also
// ignores SIGPIPE (a reader of our messages that leaves must not end training) and SIGXFSZ (a write beyond a limit on
// file sizes then fails like one on a full disk), and makes ended children waitable again, should the parent have
// ignored SIGCHLD.
void block_interrupt_signals();

// Reads the blocked signals from construction to destruction. At most one exists in a process. Further signals after
// the first change nothing here: an interruption cannot be hurried or taken back. A SIGINT or SIGHUP that the
// parent had set to be ignored (a background job of a shell, nohup) stays ignored.
class InterruptWatcher {
 public:
  // on_signal is called with each signal's number by the watcher's thread, after interrupted() has become true.
  explicit InterruptWatcher(std::function<void(int)> on_signal = {});
  ~InterruptWatcher();
  InterruptWatcher(const InterruptWatcher&) = delete;
  InterruptWatcher& operator=(const InterruptWatcher&) = delete;

  // Lock-free, from any thread.
  bool interrupted() const { return interrupted_.load(std::memory_order_acquire); }
  // Readable (poll) from the first signal on and for ever; never to be read from.
  int descriptor() const { return announced_.get(); }

 private:
  void watch();
  void tell(int signal) const noexcept;

  std::function<void(int)> on_signal_;
  std::atomic<bool> interrupted_{false};
  FileDescriptor signals_;
  FileDescriptor stop_;
  FileDescriptor announced_;
  GuardedThread thread_;
};

}  // namespace scaletrain
