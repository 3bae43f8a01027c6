#include "telemetry/event_file.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "support/event_file_reader.h"
#include "support/file_size_limit.h"
#include "support/temp_folder.h"
#include "telemetry/metrics.h"

using namespace scaletrain;

namespace {

namespace fs = std::filesystem;

using Values = std::vector<float>;

StepRecord step(std::int64_t number, double loss) {
  return {.step = number, .tokens = number * 8, .loss = loss, .learning_rate = 0.5};
}

std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  return files;
}

// A start of a run, which its metrics and its events go through.
std::unique_ptr<MetricsWriter> writer_of(const TempFolder& run) {
  auto metrics = std::make_unique<MetricsWriter>(run / "metrics.jsonl");
  metrics->add_events(std::make_unique<EventWriter>(run / "tensorboard"));
  return metrics;
}

std::string hex_of(std::string_view bytes) {
  std::string out;
  for (const char byte : bytes) out += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return out;
}

}  // namespace

TEST_CASE("an event file begins with its version and has the scalars of steps and evaluations") {
  const TempFolder folder;
  const double before = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  EventWriter writer(folder / "tensorboard");
  writer.begin_at(1);
  writer.write(StepRecord{.step = 1,
                          .tokens = 64,
                          .loss = 2.5,
                          .learning_rate = 0.125,
                          .grad_norm = 1.25,
                          .step_seconds = 0.5,
                          .tokens_per_second = 128,
                          .mfu = 0.375,
                          .loss_scale = 65536.0,
                          .gpu_memory_in_use = 3ull << 30,
                          .noise = NoiseRecord{.square = 0.5, .variance = 2.0, .scale = 4.0}});
  writer.write(EvaluationRecord{.step = 300, .dataset = "web", .loss = 3.5, .tokens = 10});
  writer.write(TaskRecord{.step = 300, .task = "quiz", .accuracy = 0.25, .normalized_accuracy = 0.5});
  REQUIRE(writer.sync());
  REQUIRE(files_of(folder / "tensorboard").size() == 1);
  CHECK(writer.path().filename().string().starts_with("events.out.tfevents."));
  const std::vector<ReadEvent> events = EventFileReader::read(TempFolder::read(writer.path()));
  REQUIRE(events.size() == 5);
  CHECK(events[0].version == "brain.Event:2");
  CHECK((events[1].session == 1 && events[1].step == 1));
  CHECK(events[2].step == 1);
  CHECK(events[2].seconds >= before);
  CHECK(events[2].seconds < before + 600);
  const std::vector<std::pair<std::string, float>> scalars = {
      {"loss", 2.5f},         {"learning_rate", 0.125f}, {"grad_norm", 1.25f},     {"tokens_per_second", 128.0f},
      {"mfu", 0.375f},        {"step_seconds", 0.5f},    {"loss_scale", 65536.0f}, {"gpu_memory_in_use", 3221225472.0f},
      {"noise_square", 0.5f}, {"noise_variance", 2.0f},  {"noise_scale", 4.0f}};
  CHECK(events[2].scalars == scalars);
  CHECK(events[3].step == 300);
  CHECK(events[3].scalars == std::vector<std::pair<std::string, float>>{{"validation/web/loss", 3.5f}});
  CHECK(events[4].step == 300);
  CHECK(events[4].scalars == std::vector<std::pair<std::string, float>>{{"task/quiz/accuracy", 0.25f},
                                                                        {"task/quiz/normalized_accuracy", 0.5f}});
}

TEST_CASE("numbers that are none, and the largest step, are stored as such") {
  const Scalar scalars[] = {{"nan", std::nan("")}, {"inf", std::numeric_limits<double>::infinity()}};
  constexpr std::int64_t last = std::numeric_limits<std::int64_t>::max();
  const auto events = EventFileReader::read(event_of_scalars(1.5, last, scalars));
  REQUIRE(events.size() == 1);
  CHECK((events[0].seconds == 1.5 && events[0].step == last));
  CHECK(std::isnan(events[0].scalars.at(0).second));
  CHECK(std::isinf(events[0].scalars.at(1).second));
}

// As TensorBoard's own RecordWriter and protobuf classes write them.
TEST_CASE("records have the bytes of tensorboard's own writer") {
  CHECK(hex_of(event_of_version(1.0)) ==
        "1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a3286bf577a");
  CHECK(hex_of(event_of_start(1.5, 7)) == "0f000000000000006d532b0909000000000000f83f10073a020801774771c7");
  const Scalar scalars[] = {{"loss", 2.5}, {"mfu", 0.0}};
  CHECK(hex_of(event_of_scalars(1.5, 300, scalars)) ==
        "2700000000000000bbe1b14609000000000000f83f10ac022a190a0b0a046c6f737315000020400a0a0a036d66751500000000"
        "dfa0b869");
}

TEST_CASE("after a restart and a rollback TensorBoard has one value per step") {
  const TempFolder run;
  {
    const auto metrics = writer_of(run);
    metrics->write(StartRecord{});
    for (int number = 1; number <= 5; ++number) metrics->write(step(number, 1.0));
    metrics->write(EvaluationRecord{.step = 5, .dataset = "web", .loss = 1.0});
  }
  {
    const auto metrics = writer_of(run);
    metrics->write(RestartRecord{.step = 3});
    for (int number = 4; number <= 6; ++number) metrics->write(step(number, 2.0));
    metrics->write(RestartRecord{.step = 5});  // a rollback: by the same process
    metrics->write(step(6, 3.0));
  }
  REQUIRE(files_of(run / "tensorboard").size() == 2);
  auto shown = EventFileReader::shown(run / "tensorboard");
  const std::map<std::int64_t, Values> losses = {{1, {1}}, {2, {1}}, {3, {1}}, {4, {2}}, {5, {2}}, {6, {3}}};
  CHECK(shown["loss"] == losses);
  CHECK(shown["validation/web/loss"].empty());
}

TEST_CASE("an evaluation that a start left over and that is made again is shown once") {
  const TempFolder run;
  const auto started = [&run](double loss) {
    const auto metrics = writer_of(run);
    metrics->write(RestartRecord{.step = 3});
    metrics->write(EvaluationRecord{.step = 3, .dataset = "web", .loss = loss});
    metrics->write(EvaluationRecord{.step = 3, .dataset = "books", .loss = loss + 1});
    return EventFileReader::shown(run / "tensorboard");
  };
  {
    const auto metrics = writer_of(run);
    metrics->write(StartRecord{});
    for (int number = 1; number <= 3; ++number) metrics->write(step(number, 1.0));
  }
  started(4.0);
  auto shown = started(6.0);
  CHECK(shown["loss"] == std::map<std::int64_t, Values>{{1, {1}}, {2, {1}}, {3, {1}}});
  CHECK(shown["validation/web/loss"] == std::map<std::int64_t, Values>{{3, {6}}});
  CHECK(shown["validation/books/loss"] == std::map<std::int64_t, Values>{{3, {7}}});
}

TEST_CASE("the file of a later start is read later, whatever the clock says") {
  const TempFolder folder;
  folder.write("tensorboard/events.out.tfevents.9000000000.elsewhere.1.0", "");
  folder.write("tensorboard/notes.txt", "");
  CHECK(EventWriter(folder / "tensorboard").path().filename().string().starts_with("events.out.tfevents.9000000001."));
  CHECK(EventWriter(folder / "tensorboard").path().filename().string().starts_with("events.out.tfevents.9000000002."));
}

TEST_CASE("a full disk does not stop events, which are whole and in order when there is room again") {
  const TempFolder folder;
  std::vector<std::string> reports;
  EventWriter writer(folder / "tensorboard", [&reports](const std::string& text) { reports.push_back(text); });
  writer.begin_at(1);
  {
    // Room for half of what a step's record takes.
    const FileSizeLimit limit(static_cast<rlim_t>(fs::file_size(writer.path()) + 60));
    for (int number = 1; number <= 3; ++number) writer.write(step(number, 1.0));
    CHECK_FALSE(writer.sync());
    REQUIRE(reports.size() == 1);
    CHECK(reports[0].starts_with(writer.path().string() + ": writing failed: "));
    CHECK(EventFileReader::read(TempFolder::read(writer.path())).size() == 2);
  }
  writer.write(step(4, 1.0));
  const std::map<std::int64_t, Values> losses = {{1, {1}}, {2, {1}}, {3, {1}}, {4, {1}}};
  CHECK(EventFileReader::shown(folder / "tensorboard")["loss"] == losses);
  CHECK(reports.size() == 1);
}

TEST_CASE("an event file that is removed or cut while the run goes on is made again, and later starts still void it") {
  const TempFolder run;
  bool is_cut = false;
  SUBCASE("removed") {}
  SUBCASE("cut") {
    is_cut = true;
  }
  {
    const auto metrics = writer_of(run);
    metrics->write(StartRecord{});
    metrics->write(step(1, 1.0));
    const fs::path file = files_of(run / "tensorboard").at(0);
    if (is_cut)
      fs::resize_file(file, fs::file_size(file) - 3);
    else
      fs::remove_all(run / "tensorboard");
    metrics->write(step(2, 1.0));
    metrics->write(step(3, 1.0));
  }
  const auto metrics = writer_of(run);
  metrics->write(RestartRecord{.step = 2});
  metrics->write(step(3, 2.0));
  CHECK(EventFileReader::shown(run / "tensorboard")["loss"] == std::map<std::int64_t, Values>{{2, {1}}, {3, {2}}});
}

TEST_CASE("a folder for events that cannot be made is refused before training") {
  const TempFolder folder;
  folder.write("tensorboard", "a file");
  CHECK_THROWS_AS(EventWriter(folder / "tensorboard"), InputError);
}

TEST_CASE("a writer whose run another process has taken over adds no events either") {
  const TempFolder run;
  MetricsWriter metrics(run / "metrics.jsonl", {}, [] { return false; });
  metrics.add_events(std::make_unique<EventWriter>(run / "tensorboard"));
  metrics.write(step(1, 1.0));
  MetricsWriter(run / "metrics.jsonl").write(step(1, 2.0));
  metrics.write(step(2, 1.0));
  metrics.write(step(3, 1.0));
  CHECK(EventFileReader::shown(run / "tensorboard")["loss"] == std::map<std::int64_t, Values>{{1, {1}}});
}
