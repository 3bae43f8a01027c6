// What a person sees while training runs: on a terminal one line that renews itself and shows as many whole fields as
// its width takes, elsewhere (a file, a job's log) plain lines, some in the beginning and then one every half minute,
// or every so many steps.
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
#include "telemetry/run_summary.h"

namespace scaletrain {

struct ProgressOptions {
  std::int64_t total_steps = 0;  // 0: unknown; neither the total nor the time left is shown
  // Plain lines come at the first and the last step seen, and at multiples of this. Nothing: at the 2nd, 5th, 10th,
  // 20th ... step seen, and whenever plain_interval has passed since the last one.
  std::optional<std::int64_t> every{};
  bool live = false;  // one line renewed in place, for a terminal
  bool colours = false;
  double least_interval = 0.1;   // seconds between renewals of the live line
  double plain_interval = 30.0;  // seconds
};

// live when `out` is a terminal that can move its cursor (TERM is not "dumb"), colours unless NO_COLOR is set.
ProgressOptions progress_options_for(std::FILE* out, std::int64_t total_steps, std::optional<std::int64_t> every);

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

  // What earlier starts of the run came to. Before the first step.
  void begin(RunSummary summary);
  void step(const StepRecord& record);
  // Once it is known, or has changed. Of options.total_steps.
  void set_total_steps(std::int64_t steps);
  // Not printed: for the summary.
  void evaluation(const EvaluationRecord& record);
  void task(const TaskRecord& record);
  void skip(const SkipRecord& record);
  // Training went back to this step.
  void went_back(std::int64_t step);
  // Of the whole run so far.
  RunSummary summary() const;
  // Prints a line of its own; a live line gives way to it and comes back below.
  void message(std::string_view text);
  // Ends the live line, its last state left to be read. Steps may follow.
  void finish();

 private:
  std::string describe(const StepRecord& record) const;
  std::vector<std::string> describe_live(const StepRecord& record) const;
  bool is_plain_line_due(const StepRecord& record);
  void draw();
  void clear();
  void put(std::string_view text) { unwritten_ += text; }
  void flush();

  mutable std::mutex mutex_;
  std::FILE* out_;
  std::string unwritten_;     // of one call
  bool is_standing_ = false;  // the stream took nothing the last time
  std::int64_t missed_ = 0;   // lines since then
  ProgressOptions options_;
  TimeLeft time_left_;
  RunSummary summary_;
  std::int64_t seen_ = 0;       // steps
  std::int64_t next_line_ = 1;  // of the steps seen, where `every` is nothing
  // The live line's fields, the most important first; empty before the first step and after finish().
  std::vector<std::string> line_;
  bool drawn_ = false;  // whether it is on the terminal, cursor at its end
  MonotonicTime last_draw_{};
  MonotonicTime last_plain_{};
};

}  // namespace scaletrain
