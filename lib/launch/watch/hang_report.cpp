#include "launch/watch/hang_report.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "host/process/thread_stacks.h"
#include "launch/workers/worker_channel.h"

namespace scaletrain {

void block_hang_signal() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGQUIT);
  SCALETRAIN_CHECK_EQ(::pthread_sigmask(SIG_BLOCK, &set, nullptr), 0);
}

HangReport::HangReport(Options options) : options_(std::move(options)), stop_(::eventfd(0, EFD_CLOEXEC)) {
  if (!stop_) throw_descriptor_error("eventfd, which ends the watch over hangs,", errno);
  prepare_thread_stacks();
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGQUIT);
  signals_ = FileDescriptor(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) throw_descriptor_error("signalfd, which asks what a hang is in,", errno);
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

void HangReport::write_report(const std::string& reason, bool with_stacks) {
  const FileDescriptor file(::open(options_.file.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666));
  if (!file) return;
  const HangPlace place = options_.place ? options_.place() : HangPlace{};
  const std::string text = fmt::format("{} {}: {}\n", wall_clock_text(), reason, place.text);
  if (!with_stacks) return write_unlocked(file.get(), text + other_threads_text());
  // Made before the threads stand. Behind what may be the first half of another thread's line.
  const std::string answer = "\n" + dumped_line(place.collective.value_or(""));
  write_unlocked(file.get(), text);
  write_last_stacks(file.get());
  write_unlocked(file.get(), "  end of the report\n");
  if (options_.told >= 0) ::send(options_.told, answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace scaletrain
