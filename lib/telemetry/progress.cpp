#include "telemetry/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "base/numbers/magnitude.h"
#include "base/process/console.h"
#include "base/text.h"
#include "telemetry/live_line.h"
#include "telemetry/loss_text.h"

namespace scaletrain {
namespace {

constexpr std::string_view start_of_line_and_clear = "\r\x1b[K";
constexpr std::string_view live_colour = "\x1b[36m";
constexpr std::string_view end_colour = "\x1b[0m";

// Longer than anything that reads at all takes, far shorter than a heartbeat.
constexpr double patience = 0.5;

}  // namespace

ProgressOptions progress_options_for(std::FILE* out, std::int64_t total_steps, std::optional<std::int64_t> every) {
  ProgressOptions options{.total_steps = total_steps, .every = every};
  // Read once while the program starts, before it has threads that could change the environment.
  const char* terminal = std::getenv("TERM");       // NOLINT(concurrency-mt-unsafe)
  const char* no_colour = std::getenv("NO_COLOR");  // NOLINT(concurrency-mt-unsafe)
  options.live = ::isatty(::fileno(out)) != 0 && terminal != nullptr && std::string_view(terminal) != "dumb";
  options.colours = options.live && (no_colour == nullptr || *no_colour == '\0');
  return options;
}

void TimeLeft::add(double step_seconds) {
  if (seen_++ == 0 || !(step_seconds >= 0) || !std::isfinite(step_seconds)) return;
  if (recent_.size() < window) {
    recent_.push_back(step_seconds);
  } else {
    recent_[static_cast<std::size_t>(seen_) % window] = step_seconds;
  }
}

std::optional<double> TimeLeft::seconds(std::int64_t steps_left) const {
  if (recent_.empty()) return std::nullopt;
  std::vector<double> sorted = recent_;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle * static_cast<double>(std::max<std::int64_t>(steps_left, 0));
}

ProgressPrinter::ProgressPrinter(std::FILE* out, ProgressOptions options) : out_(out), options_(options) {
  if (options_.every) options_.every = std::max<std::int64_t>(*options_.every, 1);
}

ProgressPrinter::~ProgressPrinter() {
  finish();
}

void ProgressPrinter::begin(RunSummary summary) {
  const std::lock_guard lock(mutex_);
  summary_ = std::move(summary);
}

void ProgressPrinter::step(const StepRecord& record) {
  const std::lock_guard lock(mutex_);
  time_left_.add(record.step_seconds);
  summary_.add(record);
  const bool first = seen_++ == 0;
  const bool last = options_.total_steps > 0 && record.step >= options_.total_steps;
  if (options_.live) {
    line_ = describe_live(record);
    if (first || last || seconds_since(last_draw_) >= options_.least_interval) draw();
    return;
  }
  if (!is_plain_line_due(record) && !first && !last) return;
  put(describe(record) + "\n");
  flush();
  last_plain_ = monotonic_now();
}

bool ProgressPrinter::is_plain_line_due(const StepRecord& record) {
  if (options_.every) return record.step % *options_.every == 0;
  if (seen_ >= next_line_) {
    // 1, 2, 5, 10, 20, 50 ...
    std::int64_t decade = 1;
    while (decade <= next_line_ / 10) decade *= 10;
    next_line_ = next_line_ / decade == 2 ? decade * 5 : next_line_ * 2;
    return true;
  }
  return seconds_since(last_plain_) >= options_.plain_interval;
}

void ProgressPrinter::evaluation(const EvaluationRecord& record) {
  const std::lock_guard lock(mutex_);
  summary_.add(record);
}

void ProgressPrinter::task(const TaskRecord& record) {
  const std::lock_guard lock(mutex_);
  summary_.add(record);
}

void ProgressPrinter::skip(const SkipRecord& record) {
  const std::lock_guard lock(mutex_);
  summary_.add(record);
}

void ProgressPrinter::went_back(std::int64_t step) {
  const std::lock_guard lock(mutex_);
  summary_.add_restart(step, "training went back");
}

RunSummary ProgressPrinter::summary() const {
  const std::lock_guard lock(mutex_);
  return summary_;
}

void ProgressPrinter::set_total_steps(std::int64_t steps) {
  const std::lock_guard lock(mutex_);
  options_.total_steps = steps;
}

void ProgressPrinter::message(std::string_view text) {
  const std::lock_guard lock(mutex_);
  clear();
  put(text);
  put("\n");
  if (!line_.empty()) {
    draw();
  } else {
    flush();
  }
}

void ProgressPrinter::finish() {
  const std::lock_guard lock(mutex_);
  if (line_.empty()) return;
  draw();
  put("\n");
  flush();
  line_.clear();
  drawn_ = false;
}

namespace {

// "nan" whatever its sign bit is, which depends on what made it.
double without_sign_of_nan(double value) {
  return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;
}

// Empty where it is not known.
std::string speed_number(const StepRecord& record) {
  const double speed = record.tokens_per_second;
  if (!std::isfinite(speed) || speed < 0 || speed >= 1e18) return {};
  return grouped_digits(static_cast<std::uint64_t>(std::llround(speed)));
}

std::string speed_text(const StepRecord& record) {
  const std::string speed = speed_number(record);
  return speed.empty() ? speed : fmt::format("  {} tokens/s", speed);
}

// The peak is that of matrix products, as measured at start (calibrate_matmul).
std::string share_text(const StepRecord& record) {
  if (!std::isfinite(record.mfu) || record.mfu <= 0) return {};
  return fmt::format("  {:.1f} % of matmul peak", 100 * record.mfu);
}

std::string step_text(const StepRecord& record, std::int64_t total) {
  return total > 0 ? fmt::format("step {}/{}", record.step, total) : fmt::format("step {}", record.step);
}

std::string loss_field(const StepRecord& record) {
  return "  loss " + loss_text(record.loss);
}

std::string left_text(const StepRecord& record, std::int64_t total, const TimeLeft& time_left) {
  if (total <= record.step) return {};
  const auto left = time_left.seconds(total - record.step);
  return left ? fmt::format("  {} left", duration_text(*left)) : std::string();
}

// "95s", "33m", "60h", "12d": in two digits, but of days.
std::string terse_duration(double seconds) {
  if (!(seconds >= 0) || seconds > 1e15) return "?";
  constexpr std::array<std::pair<double, char>, 3> units = {{{1.0, 's'}, {60.0, 'm'}, {3600.0, 'h'}}};
  constexpr double three_digits = 99.5;
  for (const auto& [unit, name] : units)
    if (seconds < three_digits * unit) return fmt::format("{:.0f}{}", seconds / unit, name);
  return fmt::format("{:.0f}d", seconds / 86400);
}

// Behind it and before it, where that is known: "33m, 10h left".
std::string time_text(const StepRecord& record, std::int64_t total, const TimeLeft& time_left) {
  std::string text = "  " + terse_duration(record.elapsed_seconds);
  if (total <= record.step) return text;
  const auto left = time_left.seconds(total - record.step);
  return left ? text + fmt::format(", {} left", terse_duration(*left)) : text;
}

}  // namespace

std::string ProgressPrinter::describe(const StepRecord& record) const {
  return step_text(record, options_.total_steps) + loss_field(record) +
         fmt::format("  lr {:.3g}  grad norm {:.3g}", record.learning_rate, without_sign_of_nan(record.grad_norm)) +
         speed_text(record) + share_text(record) + left_text(record, options_.total_steps, time_left_);
}

// What is asked for first stands first, and in few letters: a terminal of 80 columns takes all up to the tokens.
std::vector<std::string> ProgressPrinter::describe_live(const StepRecord& record) const {
  std::vector<std::string> fields = {step_text(record, options_.total_steps), loss_field(record)};
  if (const auto lowest = summary_.lowest_loss()) fields.push_back(fmt::format(" (best {})", loss_text(lowest->loss)));
  fields.push_back(time_text(record, options_.total_steps, time_left_));
  if (const std::int64_t restarts = summary_.restarts(); restarts > 0)
    fields.push_back("  " + counted(restarts, "restart"));
  if (record.tokens > 0) fields.push_back(fmt::format("  {} tok", short_count(static_cast<double>(record.tokens))));
  if (const std::string speed = speed_number(record); !speed.empty())
    fields.push_back(fmt::format("  {} tok/s", speed));
  fields.push_back(share_text(record));
  return fields;
}

void ProgressPrinter::draw() {
  put(start_of_line_and_clear);
  if (options_.colours) put(live_colour);
  put(fields_that_fit(out_, line_));
  if (options_.colours) put(end_colour);
  flush();
  drawn_ = true;
  last_draw_ = monotonic_now();
}

// A console that stands is asked again with each line, without a wait.
void ProgressPrinter::flush() {
  std::string text = std::exchange(unwritten_, {});
  const int descriptor = ::fileno(out_);
  if (descriptor < 0) {  // a stream in memory
    std::fwrite(text.data(), 1, text.size(), out_);
    std::fflush(out_);
    return;
  }
  const bool was_standing = is_standing_;
  if (was_standing)
    text.insert(0, fmt::format("\n({} lines were not shown: nothing was read here; the logs have the messages, "
                               "metrics.jsonl the steps)\n",
                               missed_));
  is_standing_ = !write_to_console(descriptor, text, was_standing ? 0.0 : patience);
  missed_ = is_standing_ ? missed_ + 1 : 0;
}

void ProgressPrinter::clear() {
  if (!drawn_) return;
  put(start_of_line_and_clear);
  drawn_ = false;
}

}  // namespace scaletrain
