#include "comm/gloo/wait_watch.h"

namespace scaletrain {

WaitWatch::WaitWatch() : thread_([this] { run(); }) {}

WaitWatch::~WaitWatch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void WaitWatch::add(Target& target, MonotonicTime when) {
  bool is_earlier = false;
  {
    const std::lock_guard lock(mutex_);
    entries_.insert({when, &target});
    is_earlier = when < sleeping_until_;
  }
  if (is_earlier) changed_.notify_one();
}

void WaitWatch::remove(Target& target, MonotonicTime when) {
  const std::lock_guard lock(mutex_);
  entries_.erase({when, &target});
}

void WaitWatch::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (entries_.empty()) {
      sleeping_until_ = MonotonicTime::max();
      changed_.wait(lock);
    } else {
      sleeping_until_ = entries_.begin()->first;
      changed_.wait_until(lock, sleeping_until_);
    }
    const MonotonicTime now = monotonic_now();
    while (!entries_.empty() && entries_.begin()->first <= now) {
      Target* target = entries_.begin()->second;
      entries_.erase(entries_.begin());
      target->wake();
    }
  }
}

}  // namespace scaletrain
