// A child process that dies with its parent.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"

namespace scaletrain {

// How a process ended.
struct ProcessEnd {
  std::optional<int> exit_code;  // nothing: a signal ended it
  int signal = 0;
};

// What to start.
struct ChildLaunch {
  std::filesystem::path executable;
  std::vector<std::string> arguments;  // without the program's name
  // The child has the caller's environment without `removed`, with `added` ("NAME=value", in place of what was there).
  // What only the child may know goes here: command lines are public.
  std::vector<std::string> added{};
  std::vector<std::string> removed{};
  std::vector<int> processors{};  // that it may run on; empty: those of the caller
};

// Owns the process: the destructor kills it and takes its remains, so that neither orphan nor zombie is left. Used by
// one thread, the one that made it; the kernel kills the process when that thread ends.
class ChildProcess {
 public:
  // The child inherits standard streams, signal mask and `inherited`, under the number that it has here. PeerError if
  // it cannot be started.
  ChildProcess(const ChildLaunch& launch, const FileDescriptor& inherited);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  // Readable once the process has ended; negative where the kernel has no such descriptors (before Linux 5.3).
  int descriptor() const { return pidfd_.get(); }
  // Without waiting: how it ended, or nothing while it lives.
  std::optional<ProcessEnd> ended();
  void signal(int number) const;
  // Stopped as a whole, by a signal or a debugger.
  bool is_stopped() const;
  // Kills it and waits for its end; false after kill_seconds, when the kernel does not let it go (a dead storage): it
  // is given up then, and ended() says how it should have ended.
  bool kill();
  static constexpr double kill_seconds = 30.0;

 private:
  std::optional<ProcessEnd> reap(int flags);

  pid_t pid_ = -1;
  FileDescriptor pidfd_;
  std::optional<ProcessEnd> end_;
};

}  // namespace scaletrain
