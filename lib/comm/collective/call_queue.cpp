#include "comm/collective/call_queue.h"

#include <condition_variable>
#include <deque>
#include <mutex>

#include "base/process/guarded_thread.h"

namespace scaletrain {

namespace {

struct Entry {
  Event ready;
  std::function<void()> call;
  bool done = false;    // run, failed or given up
  bool failed = false;  // with what the queue's FirstError holds
};

}  // namespace

struct CallQueue::State {
  explicit State(std::shared_ptr<FirstError> its_errors) : errors(std::move(its_errors)) {}

  // Takes the first entry and runs it; returns with the lock held again.
  void run_first(std::unique_lock<std::mutex>& lock) {
    const std::shared_ptr<Entry> entry = std::move(waiting.front());
    waiting.pop_front();
    running = true;
    lock.unlock();
    bool failed = false;
    try {
      errors->throw_if_any();
      entry->ready.wait();
      entry->call();
    } catch (...) {
      errors->keep_current();
      failed = true;
    }
    entry->call = nullptr;
    lock.lock();
    running = false;
    entry->failed = failed;
    entry->done = true;
    changed.notify_all();
  }

  void serve() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return stopped || (!running && !waiting.empty()); });
      if (stopped) return;
      run_first(lock);
    }
  }

  // By the thread that needs the entry's result. may_run: it may make the call itself, if that is the next one.
  void wait(const std::shared_ptr<Entry>& entry, bool may_run) {
    std::unique_lock lock(mutex);
    while (!entry->done) {
      if (may_run && !running && !waiting.empty() && waiting.front() == entry) {
        run_first(lock);
      } else {
        changed.wait(lock);
      }
    }
    if (entry->failed) errors->throw_if_any();
  }

  std::shared_ptr<FirstError> errors;
  std::mutex mutex;  // for what follows
  std::condition_variable changed;
  std::deque<std::shared_ptr<Entry>> waiting;
  bool running = false;
  bool stopped = false;
  GuardedThread thread;  // the owner's
};

namespace {

template <class Queue>
class QueuedCall final : public Ticket::State {
 public:
  QueuedCall(std::shared_ptr<Queue> queue, std::shared_ptr<Entry> entry)
      : queue_(std::move(queue)), entry_(std::move(entry)) {}

  void before(Stream& stream) override {
    // A device's stream may not wait for an event in a function, as the call does first: the queue's thread makes it.
    const bool may_run = entry_->ready.state() == nullptr;
    stream.call([queue = queue_, entry = entry_, may_run] { queue->wait(entry, may_run); });
  }
  void wait() override { queue_->wait(entry_, true); }

 private:
  std::shared_ptr<Queue> queue_;
  std::shared_ptr<Entry> entry_;
};

}  // namespace

CallQueue::CallQueue(std::shared_ptr<FirstError> errors) : state_(std::make_shared<State>(std::move(errors))) {}

CallQueue::~CallQueue() {
  std::unique_lock lock(state_->mutex);
  state_->stopped = true;
  const bool running = state_->running;
  if (running || !state_->waiting.empty())
    state_->errors->keep_peer("the communicator was closed before its calls had run");
  for (const auto& entry : state_->waiting) entry->done = entry->failed = true;
  state_->waiting.clear();
  lock.unlock();
  state_->changed.notify_all();
  if (running && interrupt_) interrupt_();
  if (state_->thread.joinable()) state_->thread.join();
}

void CallQueue::interrupt_with(std::function<void()> interrupt) {
  interrupt_ = std::move(interrupt);
}

Ticket CallQueue::add(Event ready, std::function<void()> call) {
  auto entry = std::make_shared<Entry>();
  entry->ready = std::move(ready);
  entry->call = std::move(call);
  {
    const std::lock_guard lock(state_->mutex);
    state_->waiting.push_back(entry);
    // The raw pointer is good: the owner joins the thread before it lets go of the state.
    if (!state_->thread.joinable()) state_->thread = GuardedThread([state = state_.get()] { state->serve(); });
  }
  state_->changed.notify_all();
  return Ticket(std::make_unique<QueuedCall<State>>(state_, std::move(entry)));
}

}  // namespace scaletrain
