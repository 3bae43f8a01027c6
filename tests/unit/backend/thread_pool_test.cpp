#include "backend/cpu/thread_pool.h"

#include <doctest/doctest.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <stdexcept>
#include <thread>
#include <vector>

#include "support/processor_time.h"

namespace scaletrain {
namespace {

TEST_CASE("every item is run exactly once, by a worker of the pool") {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    CHECK(pool.size() == threads);
    for (const std::int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count));
      std::atomic<bool> strange_worker = false;
      pool.for_each(count, [&](std::int64_t item, int worker) {
        ++runs[static_cast<std::size_t>(item)];
        if (worker < 0 || worker >= threads) strange_worker = true;
      });
      bool once = true;
      for (const auto& run : runs) once = once && run == 1;
      CHECK(once);
      CHECK_FALSE(strange_worker);
    }
  }
}

TEST_CASE("a loop is seen to get further while it goes on, with one thread and with several") {
  for (const int threads : {1, 3}) {
    CAPTURE(threads);
    WorkCount work{0};
    ThreadPool pool(threads, &work);
    std::uint64_t halfway = 0;
    std::atomic<std::int64_t> begun{0};
    pool.for_each(1000, [&](std::int64_t, int worker) {
      ++begun;
      // The caller works like every other thread, so it is seen again and again.
      if (worker == 0 && begun > 500 && halfway == 0) halfway = work;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    });
    CHECK(halfway > 10);
    CHECK(work > halfway);
    CHECK(work <= 1000);
    if (threads == 1) CHECK(work == 1000);
  }
}

TEST_CASE("what a loop wrote is seen by the caller and by the next loop") {
  ThreadPool pool(4);
  std::vector<std::int64_t> values(64, 0);
  for (int round = 0; round < 2000; ++round) {
    pool.for_each(64, [&](std::int64_t item, int) {
      // Reads what another thread wrote in the round before.
      values[static_cast<std::size_t>(item)] += 1;
    });
  }
  for (const std::int64_t value : values) CHECK(value == 2000);
}

TEST_CASE("a worker index is never in use by two items at once, so that scratch can be kept by worker") {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> in_use(4);
  std::atomic<bool> shared = false;
  pool.for_each(2000, [&](std::int64_t, int worker) {
    if (in_use[static_cast<std::size_t>(worker)].fetch_add(1) != 0) shared = true;
    in_use[static_cast<std::size_t>(worker)].fetch_sub(1);
  });
  CHECK_FALSE(shared);
}

TEST_CASE("an exception of an item reaches the caller and the pool works on") {
  for (const int threads : {1, 4}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 50; ++round) {
      CHECK_THROWS_WITH_AS(pool.for_each(100,
                                         [](std::int64_t item, int) {
                                           if (item == 17) throw std::runtime_error("item 17");
                                         }),
                           "item 17", std::runtime_error);
      std::atomic<int> done = 0;
      pool.for_each(100, [&](std::int64_t, int) { ++done; });
      CHECK(done == 100);
    }
  }
}

TEST_CASE("a pool that sleeps wakes up for the next loop") {
  ThreadPool pool(3);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // far beyond the time that threads spin
    std::atomic<int> done = 0;
    pool.for_each(30, [&](std::int64_t, int) { ++done; });
    CHECK(done == 30);
  }
}

TEST_CASE("many more threads than processors cost little") {
  // 64 threads that spun instead of sleeping would take a time slice (milliseconds) each in every loop.
  ThreadPool pool(64);
  const double start = processor_seconds();
  for (int round = 0; round < 100; ++round) pool.for_each(64, [](std::int64_t, int) {});
  CHECK(processor_seconds() - start < 10.0);
}

TEST_CASE("threads of the pool leave signals to the threads of the program") {
  ThreadPool pool(4);
  std::atomic<int> others = 0;
  std::atomic<int> handles_signal = 0;
  std::atomic<int> blocks_fault = 0;
  std::atomic<int> arrived = 0;
  pool.for_each(4, [&](std::int64_t, int worker) {
    // Each thread takes one item: nobody goes on until all have one.
    ++arrived;
    while (arrived < 4) std::this_thread::yield();
    if (worker == 0) return;
    ++others;
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, nullptr, &mask);
    for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGHUP, SIGCHLD, SIGALRM})
      if (sigismember(&mask, signal) != 1) ++handles_signal;
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL})
      if (sigismember(&mask, fault) != 0) ++blocks_fault;
  });
  CHECK(others == 3);
  CHECK(handles_signal == 0);
  CHECK(blocks_fault == 0);

  sigset_t own;
  pthread_sigmask(SIG_BLOCK, nullptr, &own);
  CHECK(sigismember(&own, SIGTERM) == 0);
}

TEST_CASE("the number of usable processors follows the affinity mask") {
  CHECK(num_usable_processors() >= 1);
  std::thread narrowed([] {
    cpu_set_t one;
    CPU_ZERO(&one);
    cpu_set_t before;
    REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &before)) continue;
      CPU_SET(cpu, &one);
      break;
    }
    REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);  // of this thread only
    CHECK(num_usable_processors() == 1);
  });
  narrowed.join();
}

}  // namespace
}  // namespace scaletrain
