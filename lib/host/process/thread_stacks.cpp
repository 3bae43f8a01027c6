#include "host/process/thread_stacks.h"

#include <execinfo.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "host/proc_text.h"

namespace scaletrain {
namespace {

constexpr int most_frames = 64;
// For one thread to come to its handler: one that is in the kernel for good never does.
constexpr double thread_seconds = 0.1;
constexpr double all_threads_seconds = 0.8;

// A request for one stack. The thread that is asked takes the ticket when it comes to its handler; the one that reports
// takes it back when it waits no longer. Whoever is later has no part in the request, so that the frames are only ever
// written by the thread that they are of, and read when it has written them.
struct Capture {
  static constexpr std::int64_t open = 0;
  static constexpr std::int64_t taken = 1;
  static constexpr std::int64_t done = 2;
  static constexpr std::int64_t withdrawn = 3;

  std::array<void*, most_frames> frames;
  int num_frames;
  pid_t thread;
  std::atomic<std::int64_t> state{withdrawn};
};
// A slot for each of the threads that are asked one after the other: a handler that is slow to write its frames has
// them for itself. A handler has no argument of ours.
constexpr std::size_t num_slots = 256;
std::array<Capture, num_slots> captures;
std::atomic<std::size_t> num_captures{0};

pid_t own_thread() {
  return static_cast<pid_t>(::syscall(SYS_gettid));
}

void take_stack(int) {
  const pid_t self = own_thread();
  const std::size_t count = num_captures.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < count; ++i) {
    Capture& capture = captures[i];
    std::int64_t expected = Capture::open;
    if (capture.thread != self || !capture.state.compare_exchange_strong(expected, Capture::taken)) continue;
    capture.num_frames = ::backtrace(capture.frames.data(), most_frames);
    capture.state.store(Capture::done, std::memory_order_release);
  }
  // See the header: the end of this process is on its way.
  for (;;) ::pause();
}

int stack_signal() {
  return SIGRTMIN + 5;
}

// All but the caller's, ascending.
std::vector<pid_t> other_threads() {
  std::vector<pid_t> threads;
  for (const std::string& name : names_in("/proc/self/task")) {
    pid_t thread = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), thread).ec == std::errc()) threads.push_back(thread);
  }
  std::erase(threads, own_thread());
  std::sort(threads.begin(), threads.end());
  return threads;
}

std::string thread_text(pid_t thread) {
  const std::string folder = fmt::format("/proc/self/task/{}/", thread);
  const std::string stat = proc_text(folder + "stat");
  const std::size_t name_end = stat.rfind(')');
  const char state = name_end != std::string::npos && name_end + 2 < stat.size() ? stat[name_end + 2] : '?';
  std::string place = proc_text(folder + "wchan");
  if (place.empty() || place == "0") place = "unknown";
  return fmt::format("  thread {} ({}{}): state {}, in the kernel at {}\n", thread, proc_text(folder + "comm"),
                     thread == ::getpid() ? ", main" : "", state, place);
}

// Null if the thread did not come to it.
const Capture* capture_stack(pid_t thread) {
  const std::size_t index = num_captures.load(std::memory_order_relaxed);
  if (index >= num_slots) return nullptr;
  Capture& capture = captures[index];
  capture.thread = thread;
  capture.num_frames = 0;
  capture.state.store(Capture::open, std::memory_order_relaxed);
  num_captures.store(index + 1, std::memory_order_release);
  if (::syscall(SYS_tgkill, ::getpid(), thread, stack_signal()) != 0) return nullptr;
  const MonotonicTime begin = monotonic_now();
  while (capture.state.load(std::memory_order_acquire) != Capture::done) {
    std::int64_t expected = Capture::open;
    if (seconds_since(begin) > thread_seconds &&
        capture.state.compare_exchange_strong(expected, Capture::withdrawn, std::memory_order_acq_rel))
      return nullptr;
    // It is writing them, which takes a moment only; longer, it hangs in there.
    if (seconds_since(begin) > 2 * thread_seconds) return nullptr;
    ::usleep(500);
  }
  return &capture;
}

void install_handler() {
  struct sigaction action {};
  action.sa_handler = take_stack;
  ::sigfillset(&action.sa_mask);
  ::sigaction(stack_signal(), &action, nullptr);
}

}  // namespace

void prepare_thread_stacks() {
  // Its first call loads a library, which no handler may.
  std::array<void*, 1> frame{};
  ::backtrace(frame.data(), 1);
}

std::string other_threads_text() {
  std::string text;
  for (const pid_t thread : other_threads()) text += thread_text(thread);
  return text;
}

// First what needs other threads' locks, then, with each stack, fewer and fewer threads are left to hold one.
void write_last_stacks(int file) {
  const std::vector<pid_t> threads = other_threads();
  std::vector<std::string> descriptions;
  descriptions.reserve(threads.size());
  for (const pid_t thread : threads) descriptions.push_back(thread_text(thread));
  install_handler();
  const MonotonicTime begin = monotonic_now();
  for (std::size_t i = 0; i < threads.size(); ++i) {
    write_unlocked(file, descriptions[i]);
    const Capture* const capture = seconds_since(begin) < all_threads_seconds ? capture_stack(threads[i]) : nullptr;
    if (capture != nullptr) {
      ::backtrace_symbols_fd(capture->frames.data(), capture->num_frames, file);
    } else {
      write_unlocked(file, "    no stack: it did not answer\n");
    }
  }
}

void write_unlocked(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(file, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

}  // namespace scaletrain
