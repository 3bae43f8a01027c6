// The coordinator at work, beside the first agent.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "base/process/guarded_thread.h"
#include "comm/rendezvous/key_value_store.h"
#include "launch/coordination/coordinator.h"
#include "launch/coordination/messages.h"

namespace scaletrain {

// Reads the statuses, looks, and publishes orders, until is_done(). Of agents that are given up it publishes that they
// have left: their places are free.
class CoordinatorThread {
 public:
  // The store is the thread's own.
  CoordinatorThread(Coordinator& coordinator, std::unique_ptr<KeyValueStore> store);
  // Waits for its end.
  ~CoordinatorThread();
  CoordinatorThread(const CoordinatorThread&) = delete;
  CoordinatorThread& operator=(const CoordinatorThread&) = delete;

  // published: hears of other orders; called by the thread.
  void start(std::function<void()> published = {});
  // There is news: it need not wait for its next look. Any thread.
  void look_now();
  void join();
  // What ended it, most likely a bug; by then every agent was told that the run is over. After join().
  std::exception_ptr error() const { return error_; }

 private:
  void run();
  void look_once();
  void tell_end();

  Coordinator& coordinator_;
  std::unique_ptr<KeyValueStore> store_;
  std::function<void()> published_;
  MonotonicTime begin_ = monotonic_now();
  std::string published_text_;
  std::map<std::int64_t, std::string> texts_;
  std::map<std::int64_t, AgentStatus> statuses_;
  std::mutex mutex_;
  std::condition_variable news_;
  bool has_news_ = false;
  std::exception_ptr error_;
  GuardedThread thread_;
};

}  // namespace scaletrain
