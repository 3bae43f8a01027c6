#include "telemetry/run_summary.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include "support/temp_folder.h"
#include "telemetry/metrics_reader.h"

using namespace scaletrain;

namespace {

StepRecord step_of(std::int64_t step, double loss, double elapsed) {
  StepRecord record;
  record.step = step;
  record.tokens = step * 100;
  record.loss = loss;
  record.elapsed_seconds = elapsed;
  return record;
}

void check_low(const std::optional<LossAtStep>& low, std::int64_t step, double loss) {
  REQUIRE(low);
  CHECK(low->step == step);
  CHECK(low->loss == loss);
}

}  // namespace

TEST_CASE("the lowest loss is forgotten with the steps that a restart makes void, the one before it is not") {
  LowestLoss losses;
  CHECK_FALSE(losses.lowest());
  losses.add(1, 4.0);
  losses.add(2, 3.0);
  losses.add(3, std::nan(""));
  losses.add(4, 3.5);
  losses.add(5, 2.0);
  check_low(losses.lowest(), 5, 2.0);
  losses.go_back(4);
  check_low(losses.lowest(), 2, 3.0);
  losses.add(5, 2.5);
  check_low(losses.lowest(), 5, 2.5);
  losses.go_back(0);
  CHECK_FALSE(losses.lowest());
}

TEST_CASE("restarts, growths and what somebody resumed are told apart") {
  const TempFolder folder;
  const auto file = folder / "metrics.jsonl";
  const auto told_after = [&](const std::string& cause) {
    RestartRecord restart;
    restart.cause = cause;
    MetricsWriter(file).write(restart);
    return summarize_metrics(file).starts_text();
  };
  CHECK(RunSummary().starts_text() == "no restart");
  CHECK(told_after(std::string(started_again)) == "resumed once");
  CHECK(told_after("") == "resumed twice");  // of an older program
  CHECK(told_after("worker 17 was killed") == "1 restart, resumed twice");
  CHECK(told_after(std::string(started_again)) == "1 restart, resumed 3 times");
  CHECK(told_after(std::string(grown)) == "1 restart, grown once, resumed 3 times");
  EndRecord end;
  summarize_metrics(file).fill(end);
  CHECK(end.restarts == 1);
  CHECK(end.growths == 1);
  CHECK(end.resumes == 3);
}

TEST_CASE("a metrics file is summed up over starts, restarts and torn ends, and goes into the end line") {
  const TempFolder folder;
  const auto file = folder / "metrics.jsonl";
  CHECK(summarize_metrics(file).restarts() == 0);
  {
    MetricsWriter writer(file);
    writer.write(StartRecord{});
    writer.write(step_of(1, 9.0, 1.0));
    writer.write(StartRecord{});  // begun anew: nothing before counts
    for (int step = 1; step <= 10; ++step) writer.write(step_of(step, 5.0 - 0.25 * step, 2.0 * step));
    for (const std::int64_t step : {2, 6, 9}) writer.write(SkipRecord{.step = step, .reason = "nonfinite gradient"});
    writer.write(SkipRecord{.step = 4, .reason = std::string(overflow_skip)});
    writer.write(EvaluationRecord{.step = 5, .dataset = "b", .loss = 3.0});
    writer.write(EvaluationRecord{.step = 10, .dataset = "b", .loss = 2.0});
    writer.write(EvaluationRecord{.step = 10, .dataset = "a", .loss = 1.0});
    for (const std::int64_t step : {2, 4, 6, 8})
      writer.write(TaskRecord{.step = step, .task = "quiz", .accuracy = step == 6 ? 0.25 : 0.125 * step});
    RestartRecord restart;
    restart.step = 6;
    restart.cause = "worker 17 was killed";
    writer.write(restart);
    writer.write(step_of(7, 4.5, 22.5));
    writer.write(TaskRecord{.step = 7, .task = "quiz", .accuracy = 0.375});
  }
  std::ofstream(file, std::ios::app) << R"({"kind":"step","step":8,"loss":0.)";
  const RunSummary summary = summarize_metrics(file);
  CHECK(summary.restarts() == 1);
  CHECK(summary.resumes() == 0);
  check_low(summary.lowest_loss(), 6, 3.5);
  CHECK(summary.skipped() == std::vector<std::int64_t>{2, 6});  // 9 is void, and 4 was no harm
  CHECK(summary.loss() == 4.5);
  CHECK(summary.tokens() == 700);
  CHECK(summary.elapsed_seconds() == 22.5);  // the time of the steps that are void was spent
  REQUIRE(summary.validation().empty());     // b's last evaluation is void
  REQUIRE(summary.tasks().size() == 1);
  CHECK((summary.tasks()[0].task == "quiz" && summary.tasks()[0].last.step == 7));
  CHECK((summary.tasks()[0].last.accuracy == 0.375 && summary.tasks()[0].highest.accuracy == 0.5));
  CHECK(summary.tasks()[0].highest.step == 4);
  EndRecord end;
  summary.fill(end);
  CHECK(end.best_loss == 3.5);
  CHECK(end.best_step == 6);
  CHECK(end.restarts == 1);
  CHECK(end.tokens == 700);
  CHECK(end.elapsed_seconds == 22.5);
}

TEST_CASE("the summary of a file that is longer than one look agrees with the whole file read") {
  const TempFolder folder;
  const auto file = folder / "metrics.jsonl";
  {
    MetricsWriter writer(file);
    writer.write(StartRecord{});
    for (int step = 1; step <= 20000; ++step) {
      StepRecord record = step_of(step, 2.0 + std::sin(0.01 * step), 0.5 * step);
      record.wall_time = "2026-01-01T00:00:00Z";
      writer.write(record);
      if (step % 5000 == 0) writer.write(EvaluationRecord{.step = step, .dataset = "v", .loss = 10.0 / step});
    }
  }
  REQUIRE(std::filesystem::file_size(file) > (2u << 20));
  const Metrics whole = read_metrics(file);
  const auto lowest = std::min_element(whole.steps.begin(), whole.steps.end(),
                                       [](const StepRecord& a, const StepRecord& b) { return a.loss < b.loss; });
  const RunSummary summary = summarize_metrics(file);
  check_low(summary.lowest_loss(), lowest->step, lowest->loss);
  CHECK(summary.elapsed_seconds() == 10000.0);
  REQUIRE(summary.validation().size() == 1);
  CHECK(summary.validation()[0].lowest.loss == 10.0 / 20000);
  CHECK(summary.validation()[0].last.step == 20000);
}
