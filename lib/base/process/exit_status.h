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

// What an exception means for whoever it ends; never throws anything but for want of memory.
ExitStatus exit_status_of(const std::exception_ptr& error);

}  // namespace scaletrain
