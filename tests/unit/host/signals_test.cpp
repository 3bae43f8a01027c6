#include "host/process/signals.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string>
#include <thread>

#include "base/error.h"
#include "support/eventually.h"
#include "support/refused_files.h"

namespace scaletrain {
namespace {

bool is_readable(int descriptor) {
  pollfd source{descriptor, POLLIN, 0};
  return ::poll(&source, 1, 0) == 1;
}

}  // namespace

TEST_CASE("each of the four signals interrupts, is handed on, and leaves the descriptor readable") {
  block_interrupt_signals();
  for (const int number : {SIGTERM, SIGUSR1, SIGINT, SIGHUP}) {
    CAPTURE(number);
    std::atomic<int> seen{0};
    std::atomic<int> calls{0};
    std::atomic<bool> was_set{false};
    const InterruptWatcher* watcher_address = nullptr;
    InterruptWatcher watcher([&](int signal) {
      seen = signal;
      was_set = watcher_address->interrupted();
      ++calls;
    });
    watcher_address = &watcher;
    CHECK_FALSE(watcher.interrupted());
    CHECK_FALSE(is_readable(watcher.descriptor()));
    ::kill(::getpid(), number);
    REQUIRE(eventually([&] { return calls == 1; }));
    CHECK(seen == number);
    CHECK(was_set);
    CHECK(watcher.interrupted());
    CHECK(is_readable(watcher.descriptor()));
    ::kill(::getpid(), number);
    REQUIRE(eventually([&] { return calls == 2; }));
    CHECK(watcher.interrupted());
  }
}

TEST_CASE("a signal from before the watcher is not lost") {
  block_interrupt_signals();
  ::kill(::getpid(), SIGTERM);
  const InterruptWatcher watcher;
  CHECK(eventually([&] { return watcher.interrupted(); }));
}

TEST_CASE("a watcher that finds no descriptor names the limit of this process" *
          doctest::skip(!descriptors_may_run_out)) {
  block_interrupt_signals();
  for (const rlim_t free : {0, 1, 2}) {  // of the three that it needs
    CAPTURE(free);
    std::string message;
    {
      const DescriptorLimit limit(free);
      try {
        const InterruptWatcher watcher;
      } catch (const UserError& error) {
        message = error.what();
      }
    }
    CHECK(message.find("failed: Too many open files; RLIMIT_NOFILE (ulimit -n)") != std::string::npos);
  }
}

TEST_CASE("threads started after the blocking are never chosen for delivery") {
  block_interrupt_signals();
  bool is_blocked = false;
  std::thread([&] {
    sigset_t set;
    is_blocked = ::pthread_sigmask(SIG_BLOCK, nullptr, &set) == 0 && ::sigismember(&set, SIGTERM) == 1 &&
                 ::sigismember(&set, SIGUSR1) == 1 && ::sigismember(&set, SIGINT) == 1;
  }).join();
  CHECK(is_blocked);
}

TEST_CASE("a background job that was told to ignore SIGINT goes on ignoring it") {
  block_interrupt_signals();
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  struct sigaction before {};
  REQUIRE(::sigaction(SIGINT, &ignore, &before) == 0);
  {
    const InterruptWatcher watcher;
    ::kill(::getpid(), SIGINT);
    CHECK_FALSE(eventually([&] { return watcher.interrupted(); }, 0.1));
    ::kill(::getpid(), SIGTERM);
    CHECK(eventually([&] { return watcher.interrupted(); }));
  }
  // Setting it to be ignored once more discards the pending one.
  REQUIRE(::sigaction(SIGINT, &ignore, nullptr) == 0);
  REQUIRE(::sigaction(SIGINT, &before, nullptr) == 0);
}

}  // namespace scaletrain
