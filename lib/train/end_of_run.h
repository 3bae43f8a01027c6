// The last line that a start of the run writes into its metrics, whatever ended it. A worker writes it when training is
// done; of every other end only whoever holds the run's lock (the first agent) knows the exit code and why, and it is
// still there when the workers are gone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "base/process/exit_code.h"

namespace scaletrain {

class EndOfRun {
 public:
  // To be made under the lock, before a worker starts. holds_lock: whether it is still held when the end is told.
  EndOfRun(std::filesystem::path metrics, std::function<bool()> holds_lock);

  // Adds the line, unless this start has one or another process has the run. To be called when no worker lives. The
  // step is that of the file's last step. Nothing for ExitCode::finished: the worker said so, or there was nothing to
  // do. Never throws: a file that refuses is told on standard error by the caller's `warn`.
  void tell(ExitCode code, const std::string& reason, const std::function<void(const std::string&)>& warn) noexcept;

 private:
  std::filesystem::path metrics_;
  std::function<bool()> holds_lock_;
  std::uint64_t begin_ = 0;  // size of the file then
};

}  // namespace scaletrain
