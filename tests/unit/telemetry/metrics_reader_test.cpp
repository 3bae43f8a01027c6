#include "telemetry/metrics_reader.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "support/temp_folder.h"
#include "telemetry/metrics.h"
#include "unit/telemetry/step_records.h"

using namespace scaletrain;

TEST_CASE("a restart cancels earlier lines beyond its step and no others") {
  const TempFolder folder;
  const auto file = folder / "metrics.jsonl";
  {
    MetricsWriter writer(file);
    writer.write(StartRecord{});
    for (int step = 1; step <= 5; ++step) writer.write(step_at(step, 1.0));
    writer.write(EvaluationRecord{.step = 3, .dataset = "a"});
    writer.write(EvaluationRecord{.step = 4, .dataset = "a"});
    writer.write(CheckpointRecord{.step = 3});
    writer.write(CheckpointRecord{.step = 5});
    writer.write(SkipRecord{.step = 4});
    writer.write(SpikeRecord{.step = 3, .action = "warn"});
    writer.write(SpikeRecord{.step = 4, .action = "skip"});
    writer.write(SpikeRecord{.step = 5, .action = "rollback"});
    writer.write(EarlyStopRecord{.step = 5});
    writer.write(EndRecord{.step = 5});
    writer.write(RestartRecord{.step = 3, .generation = 1});
    for (int step = 4; step <= 6; ++step) writer.write(step_at(step, 2.0));
    writer.write(RestartRecord{.step = 4, .generation = 2});
    writer.write(step_at(5, 3.0));
  }
  const Metrics read = read_metrics(file);
  CHECK(steps_of(read) == std::vector<std::int64_t>{1, 2, 3, 4, 5});
  CHECK(read.steps[2].loss == 1.0);
  CHECK(read.steps[3].loss == 2.0);
  CHECK(read.steps[4].loss == 3.0);
  CHECK(read.evaluations.size() == 1);
  CHECK(read.checkpoints.size() == 1);
  CHECK(read.skips.empty());
  // Without the spike that training went back from nobody could tell why it did.
  REQUIRE(read.spikes.size() == 2);
  CHECK(read.spikes[0].step == 3);
  CHECK(read.spikes[1].step == 5);
  CHECK(read.early_stops.empty());
  CHECK(read.ends.empty());
  CHECK(read.starts.size() == 1);
  CHECK(read.restarts.size() == 2);
}

TEST_CASE("of an evaluation that was made again the last one counts") {
  const TempFolder folder;
  const auto file = folder / "metrics.jsonl";
  {
    MetricsWriter writer(file);
    writer.write(EvaluationRecord{.step = 2, .dataset = "a", .loss = 9.0});
    for (const double loss : {1.0, 2.0}) {
      writer.write(RestartRecord{.step = 4});
      writer.write(EvaluationRecord{.step = 4, .dataset = "a", .loss = loss});
      writer.write(EvaluationRecord{.step = 4, .dataset = "b", .loss = loss + 10});
    }
  }
  const std::vector<EvaluationRecord> read = read_metrics(file).evaluations;
  REQUIRE(read.size() == 3);
  CHECK(read[0].loss == 9.0);
  CHECK(read[1].dataset == "a");
  CHECK(read[1].loss == 2.0);
  CHECK(read[2].dataset == "b");
  CHECK(read[2].loss == 12.0);
}

TEST_CASE("accuracies beyond a restart are void, and of those measured again the last counts") {
  const TempFolder folder;
  const auto file = folder / "metrics.jsonl";
  {
    MetricsWriter writer(file);
    for (const std::int64_t step : {2, 4, 6}) writer.write(TaskRecord{.step = step, .task = "a", .accuracy = 0.5});
    writer.write(RestartRecord{.step = 4});
    writer.write(TaskRecord{.step = 4, .task = "a", .accuracy = 0.75});
    writer.write(TaskRecord{.step = 4, .task = "b", .accuracy = 0.25});
  }
  const std::vector<TaskRecord> read = read_metrics(file).tasks;
  REQUIRE(read.size() == 3);
  CHECK((read[0].step == 2 && read[0].accuracy == 0.5));
  CHECK((read[1].step == 4 && read[1].task == "a" && read[1].accuracy == 0.75));
  CHECK((read[2].step == 4 && read[2].task == "b" && read[2].accuracy == 0.25));
}

TEST_CASE("damage inside the file is named by line and a torn end is not damage") {
  const std::string good = R"({"kind":"end","step":1,"reason":"r"})";
  CHECK(parse_metrics(good + "\n" + good.substr(0, 9), "m").torn_last_line);
  CHECK(parse_metrics(good + "\n" + good.substr(0, 9), "m").ends.size() == 1);
  CHECK(parse_metrics("", "m").ends.empty());
  CHECK(parse_metrics("{\"kind\":\"of the future\",\"x\":1}\n" + good + "\n", "m").ends.size() == 1);
  for (const std::string bad : {"{\"kind\":\"en\n", "\n", "[]\n", "{\"step\":1}\n", "{\"kind\":\"end\",\"step\":1.5}\n",
                                "{\"kind\":\"end\",\"step\":1}\n"}) {
    std::string message;
    std::string text = good;
    text.append("\n").append(bad).append(good).append("\n");
    try {
      parse_metrics(text, "m.jsonl");
    } catch (const InputError& error) {
      message = error.what();
    }
    INFO(bad);
    CHECK(message.starts_with("m.jsonl:2: "));
    // For who only looks, the other lines are worth reading.
    const Metrics skipped = parse_metrics(text, "m.jsonl", DamagedLines::skip);
    CHECK(skipped.ends.size() == 2);
    CHECK(skipped.whole_lines == 3);
    CHECK(skipped.damaged_lines == 1);
    CHECK(skipped.first_damage == message);
  }
}

TEST_CASE("why training ended and started again is in the file") {
  const TempFolder folder;
  const auto file = folder / "metrics.jsonl";
  {
    MetricsWriter writer(file);
    RestartRecord restart;
    restart.step = 3;
    restart.cause = "rank 3: worker 17 was killed by signal 9 (Killed) at step 5";
    writer.write(restart);
    writer.write(SpikeRecord{.step = 3, .action = "rollback", .within_window = true});
    writer.write(EndRecord{.step = 3,
                           .code = 5,
                           .reason = "two\nlines",
                           .wall_time = "now",
                           .tokens = 3072,
                           .elapsed_seconds = 4.5,
                           .best_loss = 1.25,
                           .best_step = 2,
                           .restarts = 1,
                           .growths = 3,
                           .resumes = 2});
  }
  const Metrics read = read_metrics(file);
  CHECK(read.restarts.at(0).cause == "rank 3: worker 17 was killed by signal 9 (Killed) at step 5");
  CHECK(read.spikes.at(0).within_window);
  CHECK(read.ends.at(0).code == 5);
  CHECK(read.ends.at(0).reason == "two\nlines");
  CHECK(read.ends.at(0).wall_time == "now");
  CHECK(read.ends.at(0).tokens == 3072);
  CHECK(read.ends.at(0).elapsed_seconds == 4.5);
  CHECK(read.ends.at(0).best_loss == 1.25);
  CHECK(read.ends.at(0).best_step == 2);
  CHECK(read.ends.at(0).restarts == 1);
  CHECK(read.ends.at(0).growths == 3);
  CHECK(read.ends.at(0).resumes == 2);
  // Lines of older programs have none of it.
  const Metrics old = parse_metrics(
      "{\"kind\":\"end\",\"step\":1,\"reason\":\"r\"}\n"
      "{\"kind\":\"restart\",\"step\":1,\"generation\":1,\"checkpoint\":\"\",\"fingerprint_changed\":false,"
      "\"wall_time\":\"\"}\n",
      "m");
  CHECK(old.ends.at(0).code == 0);
  CHECK(old.restarts.at(0).cause.empty());
}

TEST_CASE("the tail of a file says the last step and whether the start has ended") {
  const TempFolder folder;
  const auto file = folder / "metrics.jsonl";
  MetricsWriter writer(file);
  CHECK(read_metrics_tail(file, 0).step == 0);
  writer.write(StartRecord{});
  CHECK(read_metrics_tail(file, 0).step == 0);
  StepRecord step;
  step.step = 7;
  step.tokens_per_second = 100;
  step.mfu = 0.5;
  writer.write(step);
  CHECK(read_metrics_tail(file, 0).mfu == 0.5);
  CHECK(read_metrics_tail(file, 0).tokens_per_second == 100);
  // Longer than the first look, and not about a step that was done.
  SkipRecord skip;
  skip.step = 8;
  for (std::uint64_t i = 0; i < 20000; ++i) skip.samples.push_back(i);
  writer.write(skip);
  CHECK(read_metrics_tail(file, 0).step == 7);
  const auto middle = std::filesystem::file_size(file);
  EndRecord end;
  end.step = 8;
  writer.write(end);
  CHECK(read_metrics_tail(file, middle).step == 8);
  CHECK(read_metrics_tail(file, middle).has_ended);
  CHECK(read_metrics_tail(file, 0).has_ended);
  CHECK_FALSE(read_metrics_tail(file, std::filesystem::file_size(file)).has_ended);  // an earlier start's
  RestartRecord restart;
  restart.step = 5;
  writer.write(restart);
  CHECK(read_metrics_tail(file, 0).step == 5);
  CHECK_FALSE(read_metrics_tail(file, 0).has_ended);
  std::ofstream(file, std::ios::app) << R"({"kind":"step","step":6)";
  CHECK(read_metrics_tail(file, 0).step == 5);
}
