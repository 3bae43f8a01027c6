// The log of one process: a file that each line is appended to at once (UTC time, level, text), and a place where
// people see the same messages. Thread-safe. A line that cannot be written is lost without an error: logging never
// stops training.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace scaletrain {

struct LogOptions {
  std::filesystem::path file{};  // appended to, created as the umask says; empty: none. Its folder must exist.
  bool standard_error = false;   // the text, with its level unless that is info, to standard error
  // The same for a console that shares the terminal with a progress line (ProgressPrinter::message). Called by one
  // thread at a time; must not log.
  std::function<void(std::string_view)> console{};
};

// "logs/rank-00007.log" inside a run's folder.
std::filesystem::path rank_log_path(const std::filesystem::path& run_folder, std::int64_t rank);

class Log {
 public:
  // InputError if the file cannot be opened.
  explicit Log(LogOptions options);
  ~Log();
  Log(Log&&) noexcept;
  Log& operator=(Log&&) noexcept;

  void info(std::string_view text);
  void warn(std::string_view text);
  void error(std::string_view text);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace scaletrain
