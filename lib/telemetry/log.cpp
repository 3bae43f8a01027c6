#include "telemetry/log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/process/console.h"

namespace scaletrain {
namespace {

void write_all(int fd, const char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t n = ::write(fd, data, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    data += n;
    size -= static_cast<std::size_t>(n);
  }
}

// spdlog's own file sink leaves its descriptor open in children, which would hold the file of a run that has ended.
class FileSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FileSink(const std::filesystem::path& path)
      : file_(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666)) {
    if (!file_) {
      throw InputError(fmt::format("{}: opening the log failed: {}", path.string(), std::strerror(errno)));
    }
    formatter_ =
        std::make_unique<spdlog::pattern_formatter>("%Y-%m-%dT%H:%M:%S.%eZ %l %v", spdlog::pattern_time_type::utc);
  }

 protected:
  // Every line of a message of many has time and level: who looks for errors finds all of it.
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t text;
    std::string_view rest(message.payload.data(), message.payload.size());
    for (bool is_more = true; is_more;) {
      const std::size_t end = rest.find('\n');
      is_more = end != std::string_view::npos && end + 1 < rest.size();
      spdlog::details::log_msg line = message;
      const std::string_view shown = rest.substr(0, end);
      line.payload = spdlog::string_view_t(shown.data(), shown.size());
      formatter_->format(line, text);
      if (is_more) rest.remove_prefix(end + 1);
    }
    write_all(file_.get(), text.data(), text.size());
  }
  void flush_() override {}

 private:
  FileDescriptor file_;
};

class ConsoleSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit ConsoleSink(std::function<void(std::string_view)> console) : console_(std::move(console)) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    std::string text(message.payload.data(), message.payload.size());
    if (message.level == spdlog::level::warn) text.insert(0, "warning: ");
    if (message.level == spdlog::level::err) text.insert(0, "error: ");
    console_(text);
  }
  void flush_() override {}

 private:
  std::function<void(std::string_view)> console_;
};

void print_to_standard_error(std::string_view text) {
  constexpr double patience = 1.0;
  write_to_console(STDERR_FILENO, std::string(text) + "\n", patience);
}

}  // namespace

struct Log::State {
  spdlog::logger logger;
};

std::filesystem::path rank_log_path(const std::filesystem::path& run_folder, std::int64_t rank) {
  return run_folder / "logs" / fmt::format("rank-{:05}.log", rank);
}

Log::Log(LogOptions options) {
  std::vector<spdlog::sink_ptr> sinks;
  if (!options.file.empty()) sinks.push_back(std::make_shared<FileSink>(options.file));
  if (options.standard_error) sinks.push_back(std::make_shared<ConsoleSink>(print_to_standard_error));
  if (options.console) sinks.push_back(std::make_shared<ConsoleSink>(std::move(options.console)));
  state_ = std::make_unique<State>(State{spdlog::logger("scaletrain", sinks.begin(), sinks.end())});
}

Log::~Log() = default;
Log::Log(Log&&) noexcept = default;
Log& Log::operator=(Log&&) noexcept = default;

// The text is an argument, never a format: braces in a message are the message's.
void Log::info(std::string_view text) {
  SCALETRAIN_CHECK(state_ != nullptr);
  state_->logger.log(spdlog::level::info, spdlog::string_view_t(text.data(), text.size()));
}

void Log::warn(std::string_view text) {
  SCALETRAIN_CHECK(state_ != nullptr);
  state_->logger.log(spdlog::level::warn, spdlog::string_view_t(text.data(), text.size()));
}

void Log::error(std::string_view text) {
  SCALETRAIN_CHECK(state_ != nullptr);
  state_->logger.log(spdlog::level::err, spdlog::string_view_t(text.data(), text.size()));
}

}  // namespace scaletrain
