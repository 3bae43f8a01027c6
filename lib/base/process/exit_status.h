// What a process, or a part of a run, came to: its exit code, and why, for people.
#pragma once

#include <exception>
#include <string>

#include "base/process/exit_code.h"

namespace scaletrain {

struct ExitStatus {
  ExitCode code = ExitCode::finished;
  std::string message{};  // empty: there is nothing to tell
};

// Asked where the system has refused a thread: which limit it was, and what to do. To be set once, at the start of a
// program: what limits there are is known further up (host/thread_limits.h). It throws nothing but for want of memory.
void set_limit_finder(std::string (*find)());

// What an exception means for whoever it ends; never throws anything but for want of memory.
ExitStatus exit_status_of(const std::exception_ptr& error);

}  // namespace scaletrain
