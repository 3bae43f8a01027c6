#include "host/process/signals.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>

#include "base/error.h"

namespace scaletrain {
namespace {

constexpr std::array<int, 4> interrupt_signals = {SIGTERM, SIGUSR1, SIGINT, SIGHUP};

bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

sigset_t signal_set(bool with_ignored) {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : interrupt_signals) {
    const bool may_be_ignored = signal == SIGINT || signal == SIGHUP;
    if (!may_be_ignored || with_ignored || !is_ignored(signal)) ::sigaddset(&set, signal);
  }
  return set;
}

FileDescriptor event_descriptor() {
  FileDescriptor event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) throw_descriptor_error("eventfd, which tells of signals,", errno);
  return event;
}

void announce(const FileDescriptor& event) {
  const std::uint64_t one = 1;
  // Fails only when the counter is full, and then the event is announced already.
  [[maybe_unused]] const ssize_t n = ::write(event.get(), &one, sizeof one);
}

}  // namespace

void block_interrupt_signals() {
  const sigset_t set = signal_set(true);
  const int error = ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  SCALETRAIN_CHECK_EQ(error, 0);
  struct sigaction action {};
  action.sa_handler = SIG_IGN;
  SCALETRAIN_CHECK_EQ(::sigaction(SIGPIPE, &action, nullptr), 0);
  // A file that reaches the limit on its size (ulimit -f) is a write that fails, as on a full disk.
  SCALETRAIN_CHECK_EQ(::sigaction(SIGXFSZ, &action, nullptr), 0);
  action.sa_handler = SIG_DFL;
  SCALETRAIN_CHECK_EQ(::sigaction(SIGCHLD, &action, nullptr), 0);
}

InterruptWatcher::InterruptWatcher(std::function<void(int)> on_signal)
    : on_signal_(std::move(on_signal)), stop_(event_descriptor()), announced_(event_descriptor()) {
  const sigset_t set = signal_set(false);
  sigset_t blocked;
  SCALETRAIN_CHECK_EQ(::pthread_sigmask(SIG_BLOCK, nullptr, &blocked), 0);
  // Unblocked, they would end the process before anyone reads them.
  for (const int signal : interrupt_signals) SCALETRAIN_CHECK_EQ(::sigismember(&blocked, signal), 1);
  signals_ = FileDescriptor(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) throw_descriptor_error("signalfd, by which signals come,", errno);
  thread_ = GuardedThread([this] { watch(); });
}

InterruptWatcher::~InterruptWatcher() {
  announce(stop_);
  thread_.join();
}

// The next signal finds the watcher there, whatever became of this one's word.
void InterruptWatcher::tell(int signal) const noexcept {
  try {
    if (on_signal_) on_signal_(signal);
  } catch (const std::exception&) {
    return;
  }
}

void InterruptWatcher::watch() {
  for (;;) {
    std::array<pollfd, 2> sources = {pollfd{signals_.get(), POLLIN, 0}, pollfd{stop_.get(), POLLIN, 0}};
    if (::poll(sources.data(), sources.size(), -1) < 0 && errno != EINTR) return;
    signalfd_siginfo info{};
    while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      interrupted_.store(true, std::memory_order_release);
      announce(announced_);
      tell(static_cast<int>(info.ssi_signo));
    }
    if (sources[1].revents != 0) return;
  }
}

}  // namespace scaletrain
