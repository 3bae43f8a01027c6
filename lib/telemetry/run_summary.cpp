#include "telemetry/run_summary.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "telemetry/metrics_reader.h"

namespace scaletrain {

namespace {

// The number behind `"key":` in a line of ours; nothing for null and for what is not there. A million steps are read in
// a second so, where parsing each line would take ten.
template <class Number>
std::optional<Number> member(std::string_view line, std::string_view key) {
  const std::size_t at = line.find(key);
  if (at == std::string_view::npos) return std::nullopt;
  const char* const begin = line.data() + at + key.size();
  Number value{};
  if (std::from_chars(begin, line.data() + line.size(), value).ec != std::errc()) return std::nullopt;
  return value;
}

void add_step_line(RunSummary& summary, std::string_view line) {
  StepRecord record;
  const auto step = member<std::int64_t>(line, "\"step\":");
  if (!step) return;
  record.step = *step;
  record.tokens = member<std::int64_t>(line, "\"tokens\":").value_or(0);
  record.loss = member<double>(line, "\"loss\":").value_or(std::numeric_limits<double>::quiet_NaN());
  record.elapsed_seconds = member<double>(line, "\"elapsed_seconds\":").value_or(summary.elapsed_seconds());
  summary.add(record);
}

void add_line(RunSummary& summary, std::string_view line, const std::string& where) {
  const auto is_kind = [line](std::string_view head) { return line.starts_with(head); };
  if (is_kind(R"({"kind":"step")")) return add_step_line(summary, line);
  if (is_kind(R"({"kind":"start")")) {
    summary = RunSummary();
    return;
  }
  if (!is_kind(R"({"kind":"evaluation")") && !is_kind(R"({"kind":"task")") && !is_kind(R"({"kind":"restart")") &&
      !is_kind(R"({"kind":"skip")"))
    return;
  try {
    const Metrics metrics = parse_metrics(std::string(line) + "\n", where);
    for (const EvaluationRecord& record : metrics.evaluations) summary.add(record);
    for (const TaskRecord& record : metrics.tasks) summary.add(record);
    for (const SkipRecord& record : metrics.skips) summary.add(record);
    for (const RestartRecord& record : metrics.restarts) summary.add_restart(record.step, record.cause);
  } catch (const InputError&) {  // left out
  }
}

}  // namespace

void LowestLoss::add(std::int64_t step, double loss) {
  if (!std::isfinite(loss)) return;
  if (lows_.empty() || loss < lows_.back().loss) lows_.push_back({step, loss});
}

void LowestLoss::go_back(std::int64_t step) {
  std::erase_if(lows_, [step](const LossAtStep& low) { return low.step > step; });
}

std::optional<LossAtStep> LowestLoss::lowest() const {
  return lows_.empty() ? std::nullopt : std::optional(lows_.back());
}

void RunSummary::add(const StepRecord& record) {
  training_.add(record.step, record.loss);
  last_ = record;
}

void RunSummary::add(const EvaluationRecord& record) {
  Validation& set = validation_[record.dataset];
  set.losses.add(record.step, record.loss);
  set.last = {record.step, record.loss};
}

void RunSummary::add(const TaskRecord& record) {
  Validation& task = tasks_[record.task];
  task.losses.add(record.step, -record.accuracy);
  task.last = {record.step, -record.accuracy};
}

void RunSummary::add(const SkipRecord& record) {
  if (record.reason != overflow_skip) skipped_.push_back(record.step);
}

void RunSummary::add_restart(std::int64_t step, std::string_view cause) {
  // Older programs named no cause where somebody had started the run.
  const bool is_resume = cause.empty() || cause == started_again;
  ++(is_resume ? resumes_ : cause == grown ? growths_ : restarts_);
  go_back(step);
}

std::string RunSummary::starts_text() const {
  std::string text = restarts_ == 1 ? "1 restart" : restarts_ > 1 ? std::to_string(restarts_) + " restarts" : "";
  const auto add = [&text](const std::string& what, std::int64_t count) {
    if (count == 0) return;
    if (!text.empty()) text += ", ";
    text += what + (count == 1 ? " once" : count == 2 ? " twice" : " " + std::to_string(count) + " times");
  };
  add("grown", growths_);
  add("resumed", resumes_);
  return text.empty() ? "no restart" : text;
}

void RunSummary::go_back(std::int64_t step) {
  training_.go_back(step);
  std::erase_if(skipped_, [step](std::int64_t skipped) { return skipped > step; });
  for (auto* const kind : {&validation_, &tasks_})
    for (auto& [name, set] : *kind) {
      set.losses.go_back(step);
      if (set.last.step > step) set.last = {};
    }
}

std::vector<RunSummary::ValidationLoss> RunSummary::validation() const {
  std::vector<ValidationLoss> out;
  for (const auto& [name, set] : validation_) {
    const auto lowest = set.losses.lowest();
    if (lowest && set.last.step > 0) out.push_back({name, set.last, *lowest});
  }
  return out;
}

std::vector<RunSummary::TaskAccuracy> RunSummary::tasks() const {
  std::vector<TaskAccuracy> out;
  for (const auto& [name, task] : tasks_) {
    const auto highest = task.losses.lowest();
    if (highest && task.last.step > 0)
      out.push_back({name, {task.last.step, -task.last.loss}, {highest->step, -highest->loss}});
  }
  return out;
}

void RunSummary::fill(EndRecord& record) const {
  record.tokens = tokens();
  record.elapsed_seconds = elapsed_seconds();
  record.restarts = restarts();
  record.growths = growths();
  record.resumes = resumes();
  const auto lowest = lowest_loss();
  record.best_loss = lowest ? lowest->loss : std::numeric_limits<double>::quiet_NaN();
  record.best_step = lowest ? lowest->step : 0;
}

RunSummary summarize_metrics(const std::filesystem::path& file) {
  constexpr std::size_t block = 1u << 20;
  constexpr std::size_t longest_line = 16u << 20;  // what is longer is none of ours
  RunSummary summary;
  std::error_code error;
  if (!std::filesystem::exists(file, error)) return summary;
  const FileReader reader(file);
  std::string text;
  for (std::uint64_t offset = 0; offset < reader.size();) {
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(block, reader.size() - offset));
    const std::size_t kept = text.size();
    text.resize(kept + size);
    reader.read_at(offset, std::as_writable_bytes(std::span(text.data() + kept, size)));
    offset += size;
    std::size_t begin = 0;
    for (std::size_t end = text.find('\n', kept); end != std::string::npos; end = text.find('\n', begin)) {
      add_line(summary, std::string_view(text).substr(begin, end - begin), file.string());
      begin = end + 1;
    }
    text.erase(0, begin);
    if (text.size() > longest_line) text.clear();
  }
  return summary;
}

}  // namespace scaletrain
