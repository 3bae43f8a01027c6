#include "backend/cpu/thread_pool.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"

namespace scaletrain {

namespace {

// Longer than the gap between two operations of a layer, far shorter than a scheduler's time slice.
constexpr std::chrono::microseconds spin_time{20};

constexpr std::uint32_t gate_open = 1u << 31;

void pause_briefly() {
#if defined(__x86_64__)
  for (int i = 0; i < 16; ++i) __builtin_ia32_pause();
#endif
}

// Returns when the value differs from `old`.
void wait_while_equal(const std::atomic<std::uint32_t>& value, std::uint32_t old) {
  const auto deadline = std::chrono::steady_clock::now() + spin_time;
  do {
    if (value.load(std::memory_order_acquire) != old) return;
    pause_briefly();
  } while (std::chrono::steady_clock::now() < deadline);
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

// Blocks signals for the life of the object; threads started meanwhile inherit the mask.
class SignalBlock {
 public:
  SignalBlock() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int fault : {SIGBUS, SIGSEGV, SIGFPE, SIGILL}) sigdelset(&blocked, fault);
    pthread_sigmask(SIG_SETMASK, &blocked, &before_);
  }
  ~SignalBlock() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalBlock(const SignalBlock&) = delete;
  SignalBlock& operator=(const SignalBlock&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

int num_usable_processors() {
  // The mask must be as large as the kernel's, which is unknown: grow until it fits.
  for (int size = CPU_SETSIZE; size <= 64 * CPU_SETSIZE; size *= 2) {
    std::vector<unsigned long> words(static_cast<std::size_t>(size) / (8 * sizeof(unsigned long)), 0UL);
    const std::size_t bytes = words.size() * sizeof(unsigned long);
    auto* set = reinterpret_cast<cpu_set_t*>(words.data());
    if (sched_getaffinity(0, bytes, set) == 0) return std::max(1, CPU_COUNT_S(bytes, set));
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

ThreadPool::ThreadPool(int threads, WorkCount* work) : work_(work) {
  SCALETRAIN_CHECK(threads >= 1);
  try {
    start(threads);
  } catch (const std::system_error& error) {
    stop();
    throw UserError(
        fmt::format("could not start {} threads (started {}): {}; ask for fewer threads or raise the limit "
                    "of processes (ulimit -u)",
                    threads, workers_.size() + 1, error.what()));
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() {
  stop();
}

void ThreadPool::start(int threads) {
  const SignalBlock block;
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  for (int worker = 1; worker < threads; ++worker) {
    workers_.emplace_back([this, worker] {
      pthread_setname_np(pthread_self(), ("compute-" + std::to_string(worker)).c_str());
      work_loop(worker);
    });
  }
}

void ThreadPool::stop() {
  stopping_ = true;
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (GuardedThread& worker : workers_) worker.join();
}

void ThreadPool::run(std::int64_t count, Function function, const void* context) {
  if (count <= 0) return;
  if (count == 1 || workers_.empty()) {
    for (std::int64_t item = 0; item < count; ++item) {
      function(context, item, 0);
      count_work(work_);
    }
    return;
  }
  function_ = function;
  context_ = context;
  count_ = count;
  error_ = nullptr;
  next_item_.store(0, std::memory_order_relaxed);
  gate_.store(gate_open, std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  take_items(0);
  for (std::uint32_t inside = gate_.fetch_and(~gate_open, std::memory_order_acq_rel) & ~gate_open; inside != 0;
       inside = gate_.load(std::memory_order_acquire))
    wait_while_equal(gate_, inside);
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::work_loop(int worker) {
  for (std::uint32_t seen = 0;;) {
    wait_while_equal(generation_, seen);
    // Loops may have passed since; the one to enter is whichever is open now.
    seen = generation_.load(std::memory_order_acquire);
    if (stopping_) return;
    if (!enter()) continue;
    take_items(worker);
    leave();
  }
}

bool ThreadPool::enter() {
  std::uint32_t gate = gate_.load(std::memory_order_acquire);
  while ((gate & gate_open) != 0) {
    if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel, std::memory_order_acquire)) return true;
  }
  return false;
}

void ThreadPool::leave() {
  if (gate_.fetch_sub(1, std::memory_order_acq_rel) == 1) gate_.notify_one();
}

void ThreadPool::take_items(int worker) {
  try {
    for (std::int64_t item = next_item_.fetch_add(1, std::memory_order_relaxed); item < count_;
         item = next_item_.fetch_add(1, std::memory_order_relaxed)) {
      function_(context_, item, worker);
      // One thread's word is enough, and a counter that all write to would cost more than an item may.
      if (worker == 0) count_work(work_);
    }
  } catch (...) {
    next_item_.store(count_, std::memory_order_relaxed);
    const std::lock_guard lock(error_mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

}  // namespace scaletrain
