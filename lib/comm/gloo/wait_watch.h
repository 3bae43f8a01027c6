// Ends waits of a library that can wait with a destructive time-out only: one thread that calls each target's wake() at
// its moment. Adding and removing wakes the thread only if the moment is earlier than any it sleeps towards, so that
// waits which end in time, nearly all of them, cost no change of threads.
#pragma once

#include <condition_variable>
#include <mutex>
#include <set>
#include <utility>

#include "base/clock.h"
#include "base/process/guarded_thread.h"

namespace scaletrain {

class WaitWatch {
 public:
  class Target {
   public:
    virtual ~Target() = default;
    // On the watch's thread, under its lock: brief, and calls nothing of the watch.
    virtual void wake() = 0;
  };

  WaitWatch();
  ~WaitWatch();
  WaitWatch(const WaitWatch&) = delete;
  WaitWatch& operator=(const WaitWatch&) = delete;

  // Calls target.wake() once, at `when`, unless removed before. Thread-safe.
  void add(Target& target, MonotonicTime when);
  // After this, wake() is not being called and will not be for this entry.
  void remove(Target& target, MonotonicTime when);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::pair<MonotonicTime, Target*>> entries_;
  MonotonicTime sleeping_until_ = MonotonicTime::max();
  bool stopping_ = false;
  GuardedThread thread_;
};

}  // namespace scaletrain
