#include "support/program.h"

#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(what + ": " + std::strerror(errno));
}

// A file in memory takes any amount of output without a reader, so neither side ever waits for the other.
int capture(const char* name) {
  const int file = ::memfd_create(name, MFD_CLOEXEC);
  if (file < 0) fail("memfd_create");
  return file;
}

std::string content_of(int file) {
  struct stat status {};
  if (::fstat(file, &status) != 0) fail("fstat");
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  const ssize_t size = ::pread(file, text.data(), text.size(), 0);
  text.resize(size < 0 ? 0 : static_cast<std::size_t>(size));
  return text;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> environment_with(const Launch& launch) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    bool replaced = false;
    for (const auto& added : launch.environment) replaced = replaced || text.substr(0, text.find('=')) == added.first;
    if (!replaced) variables.emplace_back(text);
  }
  for (const auto& [name, value] : launch.environment) variables.push_back(name + "=" + value);
  return variables;
}

struct ProcessState {
  char state = '?';
  pid_t parent = -1;
};

// A file of /proc, as far as it can be read: its process may end at any moment.
std::string read_of_process(pid_t pid, const char* name) {
  const std::string path = "/proc/" + std::to_string(pid) + "/" + name;
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  std::string text(16384, '\0');
  const ssize_t size = ::read(file, text.data(), text.size());
  ::close(file);
  text.resize(size < 0 ? 0 : static_cast<std::size_t>(size));
  return text;
}

// The second field of /proc/PID/stat is a name that may hold anything; what follows its last parenthesis is regular.
std::optional<ProcessState> state_of(pid_t pid) {
  const std::string text = read_of_process(pid, "stat");
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  ProcessState found;
  std::istringstream(text.substr(name_end + 1)) >> found.state >> found.parent;
  if (found.state == 'Z' || found.state == 'X') return std::nullopt;
  return found;
}

template <class Choose>
std::vector<pid_t> living_processes(Choose choose) {
  std::vector<pid_t> found;
  std::error_code error;
  for (fs::directory_iterator entry("/proc", error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const pid_t pid = std::atoi(entry->path().filename().c_str());
    if (pid <= 0) continue;
    const auto state = state_of(pid);
    if (state && choose(pid, *state)) found.push_back(pid);
  }
  return found;
}

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

}  // namespace

double test_clock() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

Program::Program(const Launch& launch) : output_(capture("output")), errors_(capture("errors")), start_(test_clock()) {
  std::vector<std::string> arguments = {launch.executable.string()};
  arguments.insert(arguments.end(), launch.arguments.begin(), launch.arguments.end());
  std::vector<std::string> variables = environment_with(launch);
  const std::vector<char*> argument_pointers = pointers_to(arguments);
  const std::vector<char*> variable_pointers = pointers_to(variables);
  int output = output_;
  if (launch.output_file) {
    output = ::open(launch.output_file->c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC);
    if (output < 0) fail(launch.output_file->string());
  }
  const int input = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const pid_t parent = ::getpid();
  // What this process holds when it forks counts as the other's peak: also what earlier tests have used and freed.
  ::malloc_trim(0);
  pid_ = ::fork();
  if (pid_ < 0) fail("fork");
  if (pid_ == 0) {
    // Only calls that are safe between fork and exec.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(126);
    if (!launch.directory.empty() && ::chdir(launch.directory.c_str()) != 0) ::_exit(126);
    ::dup2(input, STDIN_FILENO);
    ::dup2(output, STDOUT_FILENO);
    ::dup2(errors_, STDERR_FILENO);
    ::execve(argument_pointers[0], argument_pointers.data(), variable_pointers.data());
    ::_exit(127);
  }
  ::close(input);
  if (launch.output_file) ::close(output);
}

Program::~Program() {
  if (!end_) {
    signal(SIGKILL);
    reap(0);
  }
  ::close(output_);
  ::close(errors_);
}

bool Program::reap(int flags) {
  if (end_) return true;
  int status = 0;
  rusage usage{};
  pid_t result = 0;
  do {
    result = ::wait4(pid_, &status, flags, &usage);
  } while (result < 0 && errno == EINTR);
  if (result == 0) return false;
  if (result < 0) fail("wait4");
  Ended end;
  if (WIFEXITED(status)) {
    end.exit_code = WEXITSTATUS(status);
  } else {
    end.signal = WTERMSIG(status);
  }
  end.output = output();
  end.errors = errors();
  end.seconds = test_clock() - start_;
  end.cpu_seconds = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
  end.peak_bytes = usage.ru_maxrss * 1024;
  end_ = std::move(end);
  return true;
}

bool Program::running() {
  return !reap(WNOHANG);
}

void Program::signal(int number) const {
  // Until its remains are taken, the pid belongs to it.
  if (!end_) ::kill(pid_, number);
}

const Ended& Program::wait(double timeout_seconds) {
  if (!wait_until([this] { return !running(); }, timeout_seconds)) {
    signal(SIGKILL);
    reap(0);
    end_->timed_out = true;
  }
  return *end_;
}

std::string Program::output() const {
  return content_of(output_);
}
std::string Program::errors() const {
  return content_of(errors_);
}

Ended run_program(const Launch& launch, double timeout_seconds) {
  return Program(launch).wait(timeout_seconds);
}

std::vector<pid_t> children_of(pid_t parent) {
  // Where the kernel lists the children of the main thread, nobody else need be asked.
  std::istringstream listed(read_of_process(parent, ("task/" + std::to_string(parent) + "/children").c_str()));
  std::vector<pid_t> children;
  for (pid_t child = 0; listed >> child;)
    if (is_alive(child)) children.push_back(child);
  if (!children.empty()) return children;
  return living_processes([parent](pid_t, const ProcessState& state) { return state.parent == parent; });
}

std::vector<pid_t> processes_with(std::string_view text) {
  return living_processes([text](pid_t pid, const ProcessState&) {
    return pid != ::getpid() && read_of_process(pid, "cmdline").find(text) != std::string::npos;
  });
}

bool is_alive(pid_t pid) {
  return state_of(pid).has_value();
}

}  // namespace scaletrain
