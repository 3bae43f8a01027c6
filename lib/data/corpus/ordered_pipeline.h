// Internal to lib/data: items that one thread makes, several work on at the same time, and the first one finishes in
// the order in which it made them. What comes out is the same for any number of threads.
//
// Memory is bounded: submit() waits when so many items are under way. An exception of the work on an item is thrown
// when its turn to be finished comes, so that of several the first one is told, whichever came earlier.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/process/guarded_thread.h"

namespace scaletrain {

template <class Item>
class OrderedPipeline {
 public:
  using Step = std::function<void(Item&)>;

  // work: by any of the threads; finish: by the one that submits. Both outlive the pipeline.
  OrderedPipeline(int threads, Step work, Step finish)
      : most_(2 * static_cast<std::size_t>(threads) + 2), work_(std::move(work)), finish_(std::move(finish)) {
    SCALETRAIN_CHECK(threads > 0);
    try {
      for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work_on_items(); });
    } catch (...) {
      end_threads();  // those that were granted would wait for ever
      throw;
    }
  }
  // Items that are not finished by now never are.
  ~OrderedPipeline() { end_threads(); }
  OrderedPipeline(const OrderedPipeline&) = delete;
  OrderedPipeline& operator=(const OrderedPipeline&) = delete;

  void submit(std::unique_ptr<Item> item) {
    while (under_way_.size() >= most_) finish_first();
    under_way_.push_back(std::make_unique<Entry>(std::move(item)));
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(under_way_.back().get());
    }
    has_work_.notify_one();
    while (!under_way_.empty() && is_first_done()) finish_first();
  }
  // Once anything was thrown, it does nothing: what comes after the first error is of no use.
  void finish_all() {
    while (!has_failed_ && !under_way_.empty()) finish_first();
  }

 private:
  struct Entry {
    explicit Entry(std::unique_ptr<Item> made) : item(std::move(made)) {}
    std::unique_ptr<Item> item;
    bool is_done = false;
    std::exception_ptr error;
  };

  void end_threads() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    has_work_.notify_all();
    threads_.clear();
  }

  bool is_first_done() {
    const std::lock_guard lock(mutex_);
    return under_way_.front()->is_done;
  }

  void finish_first() {
    {
      std::unique_lock lock(mutex_);
      is_done_.wait(lock, [this] { return under_way_.front()->is_done; });
    }
    const std::unique_ptr<Entry> first = std::move(under_way_.front());
    under_way_.pop_front();
    has_failed_ = true;
    if (first->error) std::rethrow_exception(first->error);
    finish_(*first->item);
    has_failed_ = false;
  }

  void work_on_items() {
    for (;;) {
      Entry* entry = nullptr;
      {
        std::unique_lock lock(mutex_);
        has_work_.wait(lock, [this] { return is_over_ || !waiting_.empty(); });
        if (is_over_) return;
        entry = waiting_.front();
        waiting_.pop_front();
      }
      std::exception_ptr error;
      try {
        work_(*entry->item);
      } catch (...) {
        error = std::current_exception();
      }
      {
        const std::lock_guard lock(mutex_);
        entry->error = error;
        entry->is_done = true;
      }
      is_done_.notify_one();
    }
  }

  std::size_t most_;
  Step work_;
  Step finish_;
  std::deque<std::unique_ptr<Entry>> under_way_;  // in order; this and has_failed_ of the submitting thread
  bool has_failed_ = false;
  std::mutex mutex_;  // the members below, and what entries say of themselves
  std::condition_variable has_work_;
  std::condition_variable is_done_;
  std::deque<Entry*> waiting_;
  bool is_over_ = false;
  std::vector<GuardedThread> threads_;
};

}  // namespace scaletrain
