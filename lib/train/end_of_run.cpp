#include "train/end_of_run.h"

#include <exception>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "telemetry/metrics.h"
#include "telemetry/metrics_reader.h"
#include "telemetry/run_summary.h"

namespace scaletrain {

namespace {

// A memory plan or the words of many ranks may be long; what follows is in the logs.
constexpr std::size_t longest_reason = 4000;

}  // namespace

EndOfRun::EndOfRun(std::filesystem::path metrics, std::function<bool()> holds_lock)
    : metrics_(std::move(metrics)), holds_lock_(std::move(holds_lock)) {
  std::error_code error;
  const auto size = std::filesystem::file_size(metrics_, error);
  if (!error) begin_ = size;
}

void EndOfRun::tell(ExitCode code, const std::string& reason,
                    const std::function<void(const std::string&)>& warn) noexcept {
  try {
    if (code == ExitCode::finished || (holds_lock_ && !holds_lock_())) return;
    // Cuts a torn last line.
    MetricsWriter writer(metrics_, warn, holds_lock_);
    const MetricsTail tail = read_metrics_tail(metrics_, begin_);
    if (tail.has_ended) return;
    EndRecord line;
    line.step = tail.step;
    line.code = static_cast<std::int64_t>(code);
    line.reason = reason.empty() && code == ExitCode::interrupted ? "interrupted" : reason.substr(0, longest_reason);
    line.wall_time = wall_clock_text();
    summarize_metrics(metrics_).fill(line);
    writer.write(line);
    writer.sync();
  } catch (const std::exception& error) {
    if (warn) warn(error.what());
  }
}

}  // namespace scaletrain
