// What a person sees while training runs: on a terminal one line that renews itself, elsewhere (a file, a job's log) a
// plain line every so many steps.
#pragma once

#include <cstdint>
#include <cstdio>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "telemetry/metrics.h"

namespace scaletrain {

struct ProgressOptions {
  std::int64_t total_steps = 0;  // 0: unknown; neither the total nor the time left is shown
  std::int64_t every = 1;        // plain lines: at multiples of it, and at the first and the last step seen
  bool live = false;             // one line renewed in place, for a terminal
  bool colours = false;
  double least_interval = 0.1;  // seconds between renewals of the live line
};

// live when `out` is a terminal that can move its cursor (TERM is not "dumb"), colours unless NO_COLOR is set.
ProgressOptions progress_options_for(std::FILE* out, std::int64_t total_steps, std::int64_t every);

// Estimates the time left from the median of recent steps, which a checkpoint or an evaluation between steps does not
// move. The first step is left out, because it warms up.
class TimeLeft {
 public:
  void add(double step_seconds);
  // Nothing before the second step.
  std::optional<double> seconds(std::int64_t steps_left) const;

 private:
  static constexpr std::size_t window = 65;  // odd, so that the median is a step that happened
  std::int64_t seen_ = 0;
  std::vector<double> recent_;  // a ring of at most `window`
};

// Writes to a stream that it does not own and never closes; failures to write are ignored. A stream that stands still
// (a pager, a stopped terminal) is not waited for beyond a moment: what it misses is counted, and the count shown when
// it goes on. Calls may come from any thread.
class ProgressPrinter {
 public:
  ProgressPrinter(std::FILE* out, ProgressOptions options);
  ~ProgressPrinter();
  ProgressPrinter(const ProgressPrinter&) = delete;
  ProgressPrinter& operator=(const ProgressPrinter&) = delete;

  void step(const StepRecord& record);
  // Prints a line of its own; a live line gives way to it and comes back below.
  void message(std::string_view text);
  // Ends the live line, its last state left to be read. Steps may follow.
  void finish();

 private:
  std::string describe(const StepRecord& record) const;
  void draw();
  void clear();
  void put(std::string_view text) { unwritten_ += text; }
  void flush();

  std::mutex mutex_;
  std::FILE* out_;
  std::string unwritten_;     // of one call
  bool is_standing_ = false;  // the stream took nothing the last time
  std::int64_t missed_ = 0;   // lines since then
  ProgressOptions options_;
  TimeLeft time_left_;
  bool any_step_ = false;
  std::string line_;    // the live line's text, empty before the first step and after finish()
  bool drawn_ = false;  // whether it is on the terminal, cursor at its end
  MonotonicTime last_draw_{};
};

}  // namespace scaletrain
