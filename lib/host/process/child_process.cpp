#include "host/process/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <string_view>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "host/thread_limits.h"

namespace scaletrain {
namespace {

constexpr auto longest_pause = std::chrono::microseconds(20'000);  // between two looks at a process that was killed

// Everything the child needs, made before the fork.
struct Preparation {
  std::string executable;
  std::vector<std::string> arguments;  // the program's name first
  std::vector<std::string> variables;
  std::vector<char*> argument_pointers;
  std::vector<char*> variable_pointers;
  cpu_set_t processors;
  bool has_processors = false;
};

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> environment_of(const ChildLaunch& launch) {
  std::vector<std::string> variables;
  const auto name_of = [](std::string_view variable) { return variable.substr(0, variable.find('=')); };
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view name = name_of(*variable);
    const auto is_named = [&](const std::string& other) { return name_of(other) == name; };
    if (std::any_of(launch.removed.begin(), launch.removed.end(), is_named)) continue;
    if (std::any_of(launch.added.begin(), launch.added.end(), is_named)) continue;
    variables.emplace_back(*variable);
  }
  variables.insert(variables.end(), launch.added.begin(), launch.added.end());
  return variables;
}

// As people should read it in a list of processes.
std::string program_name(const std::filesystem::path& executable) {
  std::error_code error;
  const std::filesystem::path target = std::filesystem::read_symlink(executable, error);
  return error ? executable.string() : target.string();
}

// Not copied or moved afterwards: the pointers point into it.
void prepare(Preparation& made, const ChildLaunch& launch) {
  made.executable = launch.executable.string();
  made.arguments = launch.arguments;
  made.arguments.insert(made.arguments.begin(), program_name(launch.executable));
  made.variables = environment_of(launch);
  made.argument_pointers = pointers_to(made.arguments);
  made.variable_pointers = pointers_to(made.variables);
  made.has_processors = !launch.processors.empty();
  CPU_ZERO(&made.processors);
  for (const int processor : launch.processors) CPU_SET(static_cast<std::size_t>(processor), &made.processors);
}

// The child between fork and exec. The parent has threads, so only async-signal-safe calls are allowed here: no
// allocation, no locks.
[[noreturn]] void run_child(const Preparation& made, pid_t parent, int inherited, int report) {
  const auto give_up = [report] {
    const int error = errno;
    [[maybe_unused]] const ssize_t n = ::write(report, &error, sizeof error);
    ::_exit(127);
  };
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) give_up();
  // The parent may have ended before the line above; then nobody will kill this process any more.
  if (::getppid() != parent) ::_exit(127);
  if (::fcntl(inherited, F_SETFD, 0) != 0) give_up();
  // Where it is refused, the child runs as well, only less evenly.
  if (made.has_processors) ::sched_setaffinity(0, sizeof made.processors, &made.processors);
  ::execve(made.executable.c_str(), made.argument_pointers.data(), made.variable_pointers.data());
  give_up();
  ::_exit(127);
}

}  // namespace

ChildProcess::ChildProcess(const ChildLaunch& launch, const FileDescriptor& inherited) {
  Preparation made;
  prepare(made, launch);

  // Closed by a successful exec; otherwise brings errno.
  std::array<int, 2> report{};
  if (::pipe2(report.data(), O_CLOEXEC) != 0)
    throw PeerError(
        fmt::format("starting a process: pipe failed: {}{}", std::strerror(errno), descriptor_remedy(errno)));
  const FileDescriptor report_read(report[0]);
  FileDescriptor report_write(report[1]);

  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) run_child(made, parent, inherited.get(), report_write.get());
  if (pid_ < 0) {
    const int reason = errno;
    throw PeerError(fmt::format(
        "starting a process: fork failed: {}; {}", std::strerror(reason),
        reason == EAGAIN ? met_limit_text(thread_limits()) : "end something here, or give the container more memory"));
  }
  report_write = FileDescriptor();

  int error = 0;
  ssize_t n = 0;
  do {
    n = ::read(report_read.get(), &error, sizeof error);
  } while (n < 0 && errno == EINTR);
  if (n == static_cast<ssize_t>(sizeof error)) {
    reap(0);
    throw PeerError(
        fmt::format("starting a process: {} cannot be executed: {}", launch.executable.string(), std::strerror(error)));
  }
#ifdef SYS_pidfd_open
  pidfd_ = FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
#endif
}

ChildProcess::~ChildProcess() {
  kill();
}

std::optional<ProcessEnd> ChildProcess::reap(int flags) {
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

std::optional<ProcessEnd> ChildProcess::ended() {
  return reap(WNOHANG);
}

void ChildProcess::signal(int number) const {
  // Until its remains are taken, the pid belongs to it.
  if (!end_) ::kill(pid_, number);
}

bool ChildProcess::is_stopped() const {
  if (end_) return false;
  std::ifstream file(fmt::format("/proc/{}/stat", pid_));
  std::string text;
  std::getline(file, text);
  // The name before it may contain anything, parentheses too.
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return false;
  return text[name_end + 2] == 'T' || text[name_end + 2] == 't';
}

bool ChildProcess::kill() {
  signal(SIGKILL);
  const MonotonicTime begin = monotonic_now();
  for (auto pause = std::chrono::microseconds(200); !ended(); pause = std::min(2 * pause, longest_pause)) {
    if (seconds_since(begin) >= kill_seconds) {
      end_ = ProcessEnd{.exit_code = std::nullopt, .signal = SIGKILL};
      return false;
    }
    std::this_thread::sleep_for(pause);
  }
  return true;
}

}  // namespace scaletrain
