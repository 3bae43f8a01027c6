#include "telemetry/metrics.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "support/file_size_limit.h"
#include "support/temp_folder.h"
#include "telemetry/metrics_reader.h"
#include "unit/telemetry/step_records.h"

using namespace scaletrain;

namespace {

LayoutRecord eight_ranks() {
  return {.world = 8,
          .data = 2,
          .tensor = 1,
          .pipeline = 4,
          .sequence = true,
          .schedule = "interleaved",
          .chunks = 3,
          .zero = 2,
          .micro_batch = 5,
          .micro_batches = 6,
          .threads = 7};
}

std::vector<SourceRecord> two_sources() {
  return {{.key = "data.train.0",
           .path = "data/web",
           .tokens = 1ll << 40,
           .samples = 1ll << 30,
           .taken = 7,
           .taken_at_end = 1ll << 28,
           .epochs = 0.25},
          {.key = "data.train.1",
           .path = "data/\"books\"",
           .tokens = 170,
           .samples = 10,
           .taken_at_end = 20,
           .cap = 20,
           .epochs = 2.0}};
}

}  // namespace

TEST_CASE("a step line has the members that tools rely on") {
  const TempFolder folder;
  const auto file = folder / "metrics.jsonl";
  MetricsWriter(file).write(StepRecord{.step = 3,
                                       .tokens = 4096,
                                       .loss = 2.5,
                                       .learning_rate = 0.001,
                                       .grad_norm = 1.25,
                                       .step_seconds = 0.5,
                                       .tokens_per_second = 8192,
                                       .mfu = 0.375,
                                       .elapsed_seconds = 12.5,
                                       .wall_time = "2026-01-31T12:00:00Z"});
  CHECK(TempFolder::read(file) ==
        R"({"kind":"step","step":3,"tokens":4096,"loss":2.5,"learning_rate":0.001,"grad_norm":1.25,)"
        R"("step_seconds":0.5,"tokens_per_second":8192.0,"mfu":0.375,)"
        R"("elapsed_seconds":12.5,"wall_time":"2026-01-31T12:00:00Z"})"
        "\n");
}

TEST_CASE("a step on a gpu tells the memory in use there, and no other does") {
  const TempFolder folder;
  const auto file = folder / "metrics.jsonl";
  {
    MetricsWriter writer(file);
    writer.write(StepRecord{.step = 1});
    writer.write(StepRecord{.step = 2, .gpu_memory_in_use = 85'000'000'000});
  }
  CHECK(TempFolder::read(file).find("\"gpu_memory_in_use\":85000000000}\n") != std::string::npos);
  const Metrics metrics = read_metrics(file);
  CHECK_FALSE(metrics.steps.at(0).gpu_memory_in_use.has_value());
  CHECK(metrics.steps.at(1).gpu_memory_in_use == 85'000'000'000);
}

TEST_CASE("a step in fp16 tells its loss scale, and no other does") {
  const TempFolder folder;
  const auto file = folder / "metrics.jsonl";
  {
    MetricsWriter writer(file);
    writer.write(StepRecord{.step = 1});
    writer.write(StepRecord{.step = 2, .loss_scale = 65536});
  }
  CHECK(TempFolder::read(file).find("\"loss_scale\":65536.0}\n") != std::string::npos);
  const Metrics metrics = read_metrics(file);
  CHECK_FALSE(metrics.steps.at(0).loss_scale.has_value());
  CHECK(metrics.steps.at(1).loss_scale == 65536.0);
}

TEST_CASE("a step that measures the gradient's noise tells it, and the scale once it is known") {
  const TempFolder folder;
  const auto file = folder / "metrics.jsonl";
  const NoiseRecord unknown{.square = -0.5, .variance = 2.0, .batch_small = 4, .batch_big = 8};
  NoiseRecord known = unknown;
  known.square = 0.5;
  known.scale = 4.0;
  {
    MetricsWriter writer(file);
    writer.write(StepRecord{.step = 1});
    writer.write(StepRecord{.step = 2, .noise = unknown});
    writer.write(StepRecord{.step = 3, .noise = known});
  }
  CHECK(TempFolder::read(file).find(R"("noise_square":-0.5,"noise_variance":2.0,"noise_batch_small":4,)") !=
        std::string::npos);
  CHECK(TempFolder::read(file).find(R"("noise_variance":2.0,"noise_scale":4.0,"noise_batch_small":4,)") !=
        std::string::npos);
  const Metrics metrics = read_metrics(file);
  CHECK_FALSE(metrics.steps.at(0).noise.has_value());
  CHECK(metrics.steps.at(1).noise == unknown);
  CHECK(metrics.steps.at(2).noise == known);
}

TEST_CASE("every kind is read back as it was written") {
  const TempFolder folder;
  const auto file = folder / "metrics.jsonl";
  {
    MetricsWriter writer(file);
    writer.write(StartRecord{.world = 8,
                             .parameters = 124439808,
                             .seed = ~0ull,
                             .version = "0.1",
                             .wall_time = "t",
                             .device = {"cpu", "fp32", {}},
                             .layout = eight_ranks(),
                             .sources = two_sources()});
    writer.write(EvaluationRecord{.step = 1, .dataset = "held \"out\"\n", .loss = 2.0, .tokens = 77});
    writer.write(TaskRecord{.step = 1,
                            .task = "capitals",
                            .accuracy = 0.25,
                            .accuracy_error = 1.0 / 3.0,
                            .normalized_accuracy = 0.5,
                            .questions = 4});
    writer.write(CheckpointRecord{.step = 1, .path = "checkpoints/step-1", .seconds = 1.5, .bytes = 1ll << 40});
    writer.write(CheckpointRecord{.step = 2, .path = "\xff bad", .failure = "no space"});
    writer.write(SkipRecord{.step = 2, .reason = "not finite", .samples = {1, ~0ull}});
    writer.write(RestartRecord{.step = 5,
                               .generation = 2,
                               .checkpoint = "step-5",
                               .fingerprint_changed = true,
                               .wall_time = "u",
                               .device = {"NVIDIA H200", "bf16", 989e12},
                               .layout = {.world = 1, .data = 1, .schedule = "gpipe"},
                               .sources = two_sources()});
    writer.write(SpikeRecord{.step = 6,
                             .loss = 0.1,
                             .mean = 2.0,
                             .deviation = 1.0 / 3.0,
                             .zscore = 7.5,
                             .action = "warn",
                             .samples = {3, ~0ull}});
    writer.write(EarlyStopRecord{.step = 6, .metric = "held_out", .value = 1.75, .reason = "patience"});
    writer.write(EndRecord{.step = 6, .reason = "finished"});
    CHECK(writer.sync());
    CHECK(writer.failures() == 0);
  }
  const Metrics read = read_metrics(file);
  REQUIRE(read.starts.size() == 1);
  CHECK(read.starts[0].world == 8);
  CHECK(read.starts[0].parameters == 124439808);
  CHECK(read.starts[0].seed == ~0ull);
  CHECK(read.starts[0].version == "0.1");
  CHECK(read.starts[0].wall_time == "t");
  CHECK(read.starts[0].device == DeviceRecord{"cpu", "fp32", {}});
  CHECK(read.starts[0].layout == eight_ranks());
  CHECK(read.starts[0].sources == two_sources());
  REQUIRE(read.tasks.size() == 1);
  CHECK((read.tasks[0].task == "capitals" && read.tasks[0].step == 1 && read.tasks[0].questions == 4));
  CHECK((read.tasks[0].accuracy == 0.25 && read.tasks[0].accuracy_error == 1.0 / 3.0));
  CHECK((read.tasks[0].normalized_accuracy == 0.5 && !read.tasks[0].normalized_accuracy_error));
  REQUIRE(read.evaluations.size() == 1);
  CHECK(read.evaluations[0].dataset == "held \"out\"\n");
  CHECK(read.evaluations[0].loss == 2.0);
  CHECK(read.evaluations[0].tokens == 77);
  REQUIRE(read.checkpoints.size() == 2);
  CHECK(read.checkpoints[0].bytes == 1ll << 40);
  CHECK(read.checkpoints[0].seconds == 1.5);
  CHECK(read.checkpoints[0].failure.empty());
  CHECK(read.checkpoints[1].path == "\xef\xbf\xbd bad");  // U+FFFD for a byte that is not UTF-8
  CHECK(read.checkpoints[1].failure == "no space");
  REQUIRE(read.skips.size() == 1);
  CHECK(read.skips[0].samples == std::vector<std::uint64_t>{1, ~0ull});
  REQUIRE(read.restarts.size() == 1);
  CHECK(read.restarts[0].generation == 2);
  CHECK(read.restarts[0].checkpoint == "step-5");
  CHECK(read.restarts[0].fingerprint_changed);
  CHECK(read.restarts[0].device == DeviceRecord{"NVIDIA H200", "bf16", 989e12});
  CHECK(read.restarts[0].layout == LayoutRecord{.world = 1, .data = 1, .schedule = "gpipe"});
  CHECK(read.restarts[0].sources == two_sources());
  REQUIRE(read.spikes.size() == 1);
  CHECK(read.spikes[0].step == 6);
  CHECK(read.spikes[0].loss == 0.1);
  CHECK(read.spikes[0].mean == 2.0);
  CHECK(read.spikes[0].deviation == 1.0 / 3.0);
  CHECK(read.spikes[0].zscore == 7.5);
  CHECK(read.spikes[0].action == "warn");
  CHECK(read.spikes[0].samples == std::vector<std::uint64_t>{3, ~0ull});
  REQUIRE(read.early_stops.size() == 1);
  CHECK(read.early_stops[0].metric == "held_out");
  CHECK(read.early_stops[0].value == 1.75);
  REQUIRE(read.ends.size() == 1);
  CHECK(read.ends[0].reason == "finished");
  CHECK_FALSE(read.torn_last_line);
}

TEST_CASE("a layout is one object of its own, and lines of older programs have none") {
  const TempFolder folder;
  const auto file = folder / "metrics.jsonl";
  MetricsWriter(file).write(StartRecord{.world = 8, .layout = eight_ranks()});
  CHECK(TempFolder::read(file).find(
            R"("layout":{"world":8,"data":2,"tensor":1,"pipeline":4,"sequence":true,"schedule":"interleaved",)"
            R"("chunks":3,"zero":2,"micro_batch":5,"micro_batches":6,"threads":7},"sources":[]})") !=
        std::string::npos);
  const Metrics old = parse_metrics(R"({"kind":"start","world":2,"parameters":1,"seed":1,"version":"0","wall_time":""})"
                                    "\n",
                                    "m");
  REQUIRE(old.starts.size() == 1);
  CHECK(old.starts[0].layout == LayoutRecord{});
  CHECK(old.starts[0].device == DeviceRecord{});
}

TEST_CASE("a start tells the peak of its device where it is known, and no other one") {
  const TempFolder folder;
  const auto file = folder / "metrics.jsonl";
  MetricsWriter(file).write(StartRecord{.device = {"NVIDIA H200", "bf16", 1.5, 2}});
  CHECK(TempFolder::read(file).find(R"("device":"NVIDIA H200","compute":"bf16","peak_flops":1.5,"gpus":2,"layout":)") !=
        std::string::npos);
  MetricsWriter(file).write(RestartRecord{.device = {"cpu", "fp32", {}}});
  CHECK(TempFolder::read(file).find(R"("device":"cpu","compute":"fp32","layout":)") != std::string::npos);
}

TEST_CASE("a layout is told in one line") {
  CHECK(
      layout_text(eight_ranks()) ==
      "8 ranks: data 2 x tensor 1 x pipeline 4, sequence, zero 2, schedule interleaved with 3 chunks, 6 micro-batches "
      "of 5, 7 threads per rank");
  CHECK(layout_text({.world = 2,
                     .data = 2,
                     .tensor = 1,
                     .pipeline = 1,
                     .chunks = 1,
                     .micro_batch = 4,
                     .micro_batches = 1,
                     .threads = 1}) ==
        "2 ranks: data 2 x tensor 1 x pipeline 1, zero 0, 1 micro-batch of 4, 1 thread per rank");
  LayoutRecord in_groups = eight_ranks();
  in_groups.zero_group = 2;
  CHECK(layout_text(in_groups).find(", zero 2 in groups of 2, schedule") != std::string::npos);
  CHECK(layout_text({.world = 1, .micro_batch = 4, .micro_batches = 2, .threads = 2}) ==
        "1 rank, 2 micro-batches of 4, 2 threads");
  CHECK(layout_text({.world = 1, .micro_batch = 4, .micro_batches = 2, .threads = 1}, "NVIDIA H100 80GB HBM3") ==
        "1 GPU (NVIDIA H100 80GB HBM3), 2 micro-batches of 4");
  const LayoutRecord two{.world = 2, .data = 2, .tensor = 1, .pipeline = 1, .micro_batch = 4, .micro_batches = 1};
  CHECK(layout_text(two, "NVIDIA H100 80GB HBM3", 2) ==
        "2 ranks: data 2 x tensor 1 x pipeline 1, zero 0, 1 micro-batch of 4, a GPU (NVIDIA H100 80GB HBM3) per rank");
  CHECK(layout_text(two, "NVIDIA H100 80GB HBM3", 1) ==
        "2 ranks: data 2 x tensor 1 x pipeline 1, zero 0, 1 micro-batch of 4, sharing 1 GPU (NVIDIA H100 80GB HBM3)");
}

TEST_CASE("losses read back to the same bits and what is not finite becomes null") {
  const TempFolder folder;
  const auto file = folder / "metrics.jsonl";
  const std::vector<double> losses = {0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, -0.0, 2.302585092994046};
  {
    MetricsWriter writer(file);
    for (std::size_t i = 0; i < losses.size(); ++i) writer.write(step_at(static_cast<std::int64_t>(i), losses[i]));
    writer.write(step_at(100, std::numeric_limits<double>::quiet_NaN()));
    writer.write(step_at(101, -std::numeric_limits<double>::infinity()));
  }
  const Metrics read = read_metrics(file);
  REQUIRE(read.steps.size() == losses.size() + 2);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    CHECK(std::bit_cast<std::uint64_t>(read.steps[i].loss) == std::bit_cast<std::uint64_t>(losses[i]));
  }
  CHECK(std::isnan(read.steps[losses.size()].loss));
  CHECK(std::isnan(read.steps[losses.size() + 1].loss));
}

TEST_CASE("opening again continues the file") {
  const TempFolder folder;
  const auto file = folder / "metrics.jsonl";
  MetricsWriter(file).write(step_at(1));
  MetricsWriter(file).write(step_at(2));
  CHECK(steps_of(read_metrics(file)) == std::vector<std::int64_t>{1, 2});
}

TEST_CASE("a torn last line is cut at every place it can tear") {
  const TempFolder folder;
  const auto file = folder / "metrics.jsonl";
  {
    MetricsWriter writer(file);
    writer.write(step_at(1));
    writer.write(step_at(2));
  }
  const std::string whole = TempFolder::read(file);
  const std::size_t first_line = whole.find('\n') + 1;
  for (std::size_t cut = 0; cut <= whole.size(); ++cut) {
    folder.write("metrics.jsonl", whole.substr(0, cut));
    const std::size_t kept = cut == whole.size() ? 2 : cut >= first_line ? 1 : 0;
    CHECK(read_metrics(file).steps.size() == kept);
    MetricsWriter(file).write(step_at(9));
    const Metrics read = read_metrics(file);
    REQUIRE(read.steps.size() == kept + 1);
    CHECK(read.steps.back().step == 9);
  }
}

TEST_CASE("a long torn line is cut too") {
  const TempFolder folder;
  const auto file = folder.write("metrics.jsonl", "{\"kind\":\"other\"}\n" + std::string(200'000, 'x'));
  MetricsWriter writer(file);
  CHECK(TempFolder::read(file) == "{\"kind\":\"other\"}\n");
  folder.write("metrics.jsonl", std::string(200'000, '\0'));
  MetricsWriter again(file);
  CHECK(TempFolder::read(file).empty());
}

TEST_CASE("a full disk never throws, is reported once, and leaves no torn line when space comes back") {
  const TempFolder folder;
  const auto file = folder / "metrics.jsonl";
  std::vector<std::string> reports;
  MetricsWriter writer(file, [&](const std::string& message) { reports.push_back(message); });
  writer.write(step_at(1));
  const auto line = std::filesystem::file_size(file);
  for (std::uint64_t torn = 0; torn < line; torn += 13) {
    reports.clear();
    const auto before = writer.failures();
    const auto first = static_cast<std::int64_t>(10 * torn + 10);
    const auto size = std::filesystem::file_size(file);
    {
      const FileSizeLimit limit(size + torn);
      for (int i = 0; i < 3; ++i) CHECK_NOTHROW(writer.write(step_at(first + i)));
      CHECK_FALSE(writer.sync());
    }
    CHECK(writer.failures() == before + 4);
    REQUIRE(reports.size() == 1);
    CHECK(reports[0].find(file.string()) != std::string::npos);
    CHECK(std::filesystem::file_size(file) == size);  // readers see whole lines only
    writer.write(step_at(first + 3));
    const auto steps = steps_of(read_metrics(file));
    REQUIRE(steps.size() >= 4);
    for (int i = 0; i < 4; ++i) CHECK(steps[steps.size() - 4 + static_cast<std::size_t>(i)] == first + i);
  }
  CHECK(writer.sync());
}

TEST_CASE("of two writers of one file the one that owns the run goes on and no line of either is destroyed") {
  const TempFolder folder;
  const auto file = folder / "metrics.jsonl";
  std::vector<std::string> reports;
  bool is_taken_over = false;
  MetricsWriter older(
      file, [&](const std::string& message) { reports.push_back(message); }, [&] { return !is_taken_over; });
  for (int step = 1; step <= 3; ++step) older.write(step_at(step));
  is_taken_over = true;
  MetricsWriter newer(file, {}, [] { return true; });
  // Nobody else has written yet: the older does not know.
  older.write(step_at(4));
  newer.write(RestartRecord{.step = 2, .generation = 1, .checkpoint = "step-2"});
  const std::string taken_over = TempFolder::read(file);
  for (int step = 5; step <= 30; ++step) older.write(step_at(step));
  CHECK(TempFolder::read(file) == taken_over);
  CHECK_FALSE(older.sync());
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].find(file.string()) != std::string::npos);
  CHECK(reports[0].find("taken the run over") != std::string::npos);
  newer.write(step_at(3, 9.0));
  CHECK(newer.failures() == 0);
  const Metrics read = read_metrics(file);
  REQUIRE(read.restarts.size() == 1);
  CHECK(read.restarts[0].checkpoint == "step-2");
  CHECK(steps_of(read) == std::vector<std::int64_t>{1, 2, 3});
  CHECK(read.steps.back().loss == 9.0);
  CHECK_FALSE(read.torn_last_line);
}

TEST_CASE("an owner cuts what a former one left of a line and writes behind its whole lines") {
  const TempFolder folder;
  const auto file = folder / "metrics.jsonl";
  MetricsWriter older(file);
  older.write(step_at(1));
  MetricsWriter newer(file);
  older.write(step_at(2));
  const std::string whole = TempFolder::read(file);
  folder.write("metrics.jsonl", whole + R"({"kind":"st)");
  newer.write(step_at(3));
  CHECK(TempFolder::read(file).starts_with(whole));
  CHECK(steps_of(read_metrics(file)) == std::vector<std::int64_t>{1, 2, 3});
}

TEST_CASE("a writer that cannot tell whether it owns the run keeps its lines until it can") {
  const TempFolder folder;
  const auto file = folder / "metrics.jsonl";
  bool is_readable = false;
  int reports = 0;
  MetricsWriter writer(
      file, [&](const std::string&) { ++reports; },
      [&] {
        if (!is_readable) throw InputError("the lock cannot be read");
        return true;
      });
  writer.write(step_at(1));
  MetricsWriter(file).write(step_at(2));
  const std::string before = TempFolder::read(file);
  writer.write(step_at(3));
  writer.write(step_at(4));
  CHECK(TempFolder::read(file) == before);
  CHECK(reports == 1);
  is_readable = true;
  CHECK(writer.sync());
  CHECK(steps_of(read_metrics(file)) == std::vector<std::int64_t>{1, 2, 3, 4});
}

TEST_CASE("a file that is removed or moved away while a run goes on is made again and that is said") {
  const TempFolder folder;
  const auto file = folder / "metrics.jsonl";
  std::vector<std::string> reports;
  MetricsWriter writer(file, [&](const std::string& message) { reports.push_back(message); });
  writer.write(step_at(1));
  std::filesystem::remove(file);
  writer.write(step_at(2));
  writer.write(step_at(3));
  CHECK(steps_of(read_metrics(file)) == std::vector<std::int64_t>{2, 3});
  std::filesystem::rename(file, folder / "old.jsonl");
  writer.write(step_at(4));
  CHECK(writer.sync());
  CHECK(steps_of(read_metrics(file)) == std::vector<std::int64_t>{4});
  CHECK(steps_of(read_metrics(folder / "old.jsonl")) == std::vector<std::int64_t>{2, 3});
  // What an editor does: the new file has the old lines.
  std::filesystem::copy_file(folder / "old.jsonl", folder / "edited.jsonl");
  std::filesystem::rename(folder / "edited.jsonl", file);
  writer.write(step_at(5));
  CHECK(steps_of(read_metrics(file)) == std::vector<std::int64_t>{2, 3, 5});
  REQUIRE(reports.size() == 3);
  for (const std::string& report : reports)
    CHECK(report.starts_with(file.string() + ": the file was removed or moved"));
  CHECK(writer.failures() == 0);
}

TEST_CASE("lines wait while the folder of the file is away and are in the new file when it is back") {
  const TempFolder folder;
  const auto file = folder.write("run/metrics.jsonl", "");
  int reports = 0;
  MetricsWriter writer(file, [&](const std::string&) { ++reports; });
  std::filesystem::remove_all(file.parent_path());
  writer.write(step_at(1));
  writer.write(step_at(2));
  CHECK_FALSE(std::filesystem::exists(file.parent_path()));
  CHECK(writer.failures() == 2);
  CHECK(reports == 1);
  std::filesystem::create_directory(file.parent_path());
  writer.write(step_at(3));
  CHECK(steps_of(read_metrics(file)) == std::vector<std::int64_t>{1, 2, 3});
}

TEST_CASE("who lost the run makes no new file in place of one that is gone") {
  const TempFolder folder;
  const auto file = folder / "metrics.jsonl";
  MetricsWriter writer(file, {}, [] { return false; });
  writer.write(step_at(1));
  std::filesystem::remove(file);
  writer.write(step_at(2));
  CHECK_FALSE(std::filesystem::exists(file));
  CHECK_FALSE(writer.sync());
}

TEST_CASE("what cannot be a metrics file is refused before training") {
  const TempFolder folder;
  CHECK_THROWS_AS(MetricsWriter(folder.path()), InputError);
  CHECK_THROWS_AS(MetricsWriter(folder / "absent/metrics.jsonl"), InputError);
  CHECK_THROWS_AS(MetricsWriter("/dev/full"), InputError);
  CHECK_THROWS_AS(read_metrics(folder / "absent"), InputError);
}
