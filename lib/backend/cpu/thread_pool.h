// Persistent threads that share the items of one loop at a time.
//
// Items are handed out by a counter, so a thread that the system delays does fewer of them. This leaves results
// unchanged as long as what an item computes depends on the item alone and items write disjoint memory: every loop in
// this folder is written so, and many give the same bits for any number of threads.
//
// The calling thread works too, and waits only for threads that took part: one that the system has not yet woken when
// the items are gone is left out, so a busy machine costs its share and no more. Idle threads spin for some
// microseconds (operations follow each other closely), then sleep in the kernel, so that a machine with more runnable
// threads than processors loses nothing to waiting.
//
// Pool threads block every signal except those that a fault of their own raises: handlers run on the program's threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <type_traits>
#include <vector>

#include "base/process/guarded_thread.h"
#include "base/process/work_count.h"

namespace scaletrain {

// The number of processors that this process may run on (its affinity mask).
int num_usable_processors();

class ThreadPool {
 public:
  // threads >= 1 counts the caller: threads - 1 are started. UserError when the system refuses them. work: counts
  // the items that the caller does, which is one among all threads at any time of a loop; it must outlive the pool.
  explicit ThreadPool(int threads, WorkCount* work = nullptr);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(item, worker) for every item in [0, count), worker in [0, size()); returns when all are done. One thread
  // at a time may call it, and not from inside a body. The first exception of a body is rethrown; the items not yet
  // begun are left.
  template <class Body>
  void for_each(std::int64_t count, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run(
        count,
        [](const void* context, std::int64_t item, int worker) { (*static_cast<const Plain*>(context))(item, worker); },
        &body);
  }

 private:
  using Function = void (*)(const void* context, std::int64_t item, int worker);

  void run(std::int64_t count, Function function, const void* context);
  void work_loop(int worker);
  // False if the loop in progress, if any, is closed.
  bool enter();
  void leave();
  void take_items(int worker);
  void start(int threads);
  void stop();

  std::vector<GuardedThread> workers_;
  WorkCount* work_;

  // The loop in progress: written by the caller before it advances generation_.
  Function function_ = nullptr;
  const void* context_ = nullptr;
  std::int64_t count_ = 0;
  bool stopping_ = false;

  alignas(64) std::atomic<std::int64_t> next_item_ = 0;
  // Advances with every loop: what idle workers watch.
  alignas(64) std::atomic<std::uint32_t> generation_ = 0;
  // The number of workers inside the loop, and `gate_open` while more may enter. The loop's members change only while
  // it is zero.
  alignas(64) std::atomic<std::uint32_t> gate_ = 0;

  std::mutex error_mutex_;
  std::exception_ptr error_;
};

}  // namespace scaletrain
