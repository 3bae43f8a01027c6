#include "launch/worker_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/error.h"

namespace scaletrain {
namespace {

// The child between fork and exec. The parent has threads, so only async-signal-safe calls are allowed here: no
// allocation, no locks.
[[noreturn]] void run_child(const char* executable, char* const* arguments, pid_t agent, int channel, int report) {
  const auto give_up = [report] {
    const int error = errno;
    [[maybe_unused]] const ssize_t n = ::write(report, &error, sizeof error);
    ::_exit(127);
  };
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) give_up();
  // The agent may have ended before the line above; then nobody will kill this process any more.
  if (::getppid() != agent) ::_exit(127);
  if (::fcntl(channel, F_SETFD, 0) != 0) give_up();
  ::execv(executable, arguments);
  give_up();
  ::_exit(127);
}

}  // namespace

WorkerProcess::WorkerProcess(const std::filesystem::path& executable, std::vector<std::string> arguments,
                             const FileDescriptor& channel) {
  arguments.insert(arguments.begin(), executable.string());
  arguments.emplace_back("--channel");
  arguments.push_back(fmt::format("{}", channel.get()));
  std::vector<char*> pointers;
  pointers.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);

  // Closed by a successful exec; otherwise brings errno.
  std::array<int, 2> report{};
  if (::pipe2(report.data(), O_CLOEXEC) != 0)
    throw PeerError(fmt::format("starting the worker: pipe failed: {}", std::strerror(errno)));
  const FileDescriptor report_read(report[0]);
  FileDescriptor report_write(report[1]);

  const pid_t agent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) run_child(executable.c_str(), pointers.data(), agent, channel.get(), report_write.get());
  if (pid_ < 0) throw PeerError(fmt::format("starting the worker: fork failed: {}", std::strerror(errno)));
  report_write = FileDescriptor();

  int error = 0;
  ssize_t n = 0;
  do {
    n = ::read(report_read.get(), &error, sizeof error);
  } while (n < 0 && errno == EINTR);
  if (n == static_cast<ssize_t>(sizeof error)) {
    reap(0);
    throw PeerError(
        fmt::format("starting the worker: {} cannot be executed: {}", executable.string(), std::strerror(error)));
  }
#ifdef SYS_pidfd_open
  pidfd_ = FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
#endif
}

WorkerProcess::~WorkerProcess() {
  kill();
}

std::optional<ProcessEnd> WorkerProcess::reap(int flags) {
  if (end_) return end_;
  int status = 0;
  pid_t result = 0;
  do {
    result = ::waitpid(pid_, &status, flags);
  } while (result < 0 && errno == EINTR);
  if (result == 0) return std::nullopt;
  // An error means that somebody else took the remains (SIGCHLD ignored by the parent's parent): how it ended is
  // unknown then.
  if (result < 0) {
    end_ = ProcessEnd{.exit_code = std::nullopt, .signal = SIGKILL};
  } else if (WIFEXITED(status)) {
    end_ = ProcessEnd{.exit_code = WEXITSTATUS(status)};
  } else {
    end_ = ProcessEnd{.exit_code = std::nullopt, .signal = WTERMSIG(status)};
  }
  return end_;
}

std::optional<ProcessEnd> WorkerProcess::ended() {
  return reap(WNOHANG);
}

void WorkerProcess::signal(int number) const {
  // Until its remains are taken, the pid belongs to it.
  if (!end_) ::kill(pid_, number);
}

void WorkerProcess::kill() {
  signal(SIGKILL);
  reap(0);
}

}  // namespace scaletrain
