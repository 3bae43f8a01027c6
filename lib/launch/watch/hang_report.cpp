#include "launch/watch/hang_report.h"

#include <dirent.h>
#include <execinfo.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "launch/watch/proc_text.h"
#include "launch/workers/worker_channel.h"

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

// Directly, for a thread that was stopped in the middle of anything may hold any lock.
void write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(file, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

std::vector<pid_t> threads_of_process() {
  std::vector<pid_t> threads;
  DIR* const folder = ::opendir("/proc/self/task");
  if (folder == nullptr) return threads;
  while (const dirent* const entry = ::readdir(folder)) {
    pid_t thread = 0;
    const std::string_view name = entry->d_name;
    if (std::from_chars(name.data(), name.data() + name.size(), thread).ec == std::errc()) threads.push_back(thread);
  }
  ::closedir(folder);
  return threads;
}

// "thread 123 (scaletrain, main): state S, in the kernel at futex_wait"
std::string thread_text(pid_t thread) {
  const std::string folder = fmt::format("/proc/self/task/{}/", thread);
  const std::string stat = proc_text(folder + "stat");
  const std::size_t name_end = stat.rfind(')');
  const char state = name_end != std::string::npos && name_end + 2 < stat.size() ? stat[name_end + 2] : '?';
  std::string place = proc_text(folder + "wchan");
  if (place.empty() || place == "0") place = "unknown";
  return fmt::format("thread {} ({}{}): state {}, in the kernel at {}", thread, proc_text(folder + "comm"),
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

void block_hang_signal() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGQUIT);
  SCALETRAIN_CHECK_EQ(::pthread_sigmask(SIG_BLOCK, &set, nullptr), 0);
}

HangReport::HangReport(Options options) : options_(std::move(options)), stop_(::eventfd(0, EFD_CLOEXEC)) {
  // Its first call loads a library, which no handler may.
  std::array<void*, 1> frame{};
  ::backtrace(frame.data(), 1);
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGQUIT);
  signals_ = FileDescriptor(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!stop_ || !signals_) throw InputError(fmt::format("signalfd failed: {}", std::strerror(errno)));
  thread_ = GuardedThread([this] { watch(); });
}

HangReport::~HangReport() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(stop_.get(), &one, sizeof one);
  thread_.join();
}

void HangReport::watch() {
  for (;;) {
    std::array<pollfd, 2> sources = {pollfd{signals_.get(), POLLIN, 0}, pollfd{stop_.get(), POLLIN, 0}};
    if (::poll(sources.data(), sources.size(), -1) < 0 && errno != EINTR) return;
    if (sources[1].revents != 0) return;
    signalfd_siginfo info{};
    if (::read(signals_.get(), &info, sizeof info) != static_cast<ssize_t>(sizeof info)) continue;
    const bool is_asked_by_agent = static_cast<pid_t>(info.ssi_pid) == ::getppid();
    try {
      write_report(is_asked_by_agent ? "taken for hung by the agent" : "asked by SIGQUIT", is_asked_by_agent);
    } catch (const std::exception&) {  // no memory for it: the agent waits for its end in vain, and goes on
      continue;
    }
  }
}

// First what needs other threads' locks, then, with each stack, fewer and fewer threads are left to hold one.
void HangReport::write_report(const std::string& reason, bool with_stacks) {
  const FileDescriptor file(::open(options_.file.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666));
  if (!file) return;
  const HangPlace place = options_.place ? options_.place() : HangPlace{};
  std::string text = fmt::format("{} {}: {}\n", wall_clock_text(), reason, place.text);
  // Behind what may be the first half of another thread's line.
  const std::string answer = "\n" + dumped_line(place.collective.value_or(""));
  const pid_t self = own_thread();
  std::vector<pid_t> threads = threads_of_process();
  std::erase(threads, self);
  std::sort(threads.begin(), threads.end());
  std::vector<std::string> descriptions;
  descriptions.reserve(threads.size());
  for (const pid_t thread : threads) descriptions.push_back("  " + thread_text(thread) + "\n");
  if (!with_stacks) {
    for (const std::string& description : descriptions) text += description;
    write_all(file.get(), text);
    return;
  }
  write_all(file.get(), text);
  install_handler();
  const MonotonicTime begin = monotonic_now();
  for (std::size_t i = 0; i < threads.size(); ++i) {
    write_all(file.get(), descriptions[i]);
    const Capture* const capture = seconds_since(begin) < all_threads_seconds ? capture_stack(threads[i]) : nullptr;
    if (capture != nullptr) {
      ::backtrace_symbols_fd(capture->frames.data(), capture->num_frames, file.get());
    } else {
      write_all(file.get(), "    no stack: it did not answer\n");
    }
  }
  write_all(file.get(), "  end of the report\n");
  if (options_.told >= 0) ::send(options_.told, answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace scaletrain
