// Losses that jump and numbers that are not finite, on several ranks as real processes: what is decided, by all ranks
// alike, with which exit code, and what is left in the files.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <limits>

#include "ranks.h"
#include "support/sample_places.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t context = 32;
constexpr std::size_t text_bytes = 400 * context;
constexpr int batch = 4;  // samples of a step

// An easy text, with other bytes in the samples that are given.
void write_text(const std::string& name, const std::vector<std::int64_t>& samples, const std::string& planted) {
  const fs::path folder = workspace() / "places";
  fs::create_directories(folder);
  std::string text;
  while (text.size() < text_bytes) text += "one two three four five six\n";
  text.resize(text_bytes);
  for (const std::int64_t sample : samples)
    text.replace(sample_places(folder, 1234, context, text_bytes, sample, 1).front(), planted.size(), planted);
  workspace().write(name, text);
}

std::vector<std::int64_t> samples_of_steps(int first, int last) {
  std::vector<std::int64_t> samples;
  for (std::int64_t sample = batch * (first - 1); sample < batch * last; ++sample) samples.push_back(sample);
  return samples;
}

std::string noise() {
  std::string bytes(context, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(128 + i * 37 % 128);
  return bytes;
}

Launch training(const std::string& run, const std::string& text, const Settings& settings) {
  Settings all = {"data.train=[{path: " + text + "}]",
                  "train.steps=40",
                  "train.micro_batch=1",
                  "train.optimizer.learning_rate=1e-2",
                  "train.lr_schedule={type: constant, warmup: 2}",
                  "evaluate.every=10",
                  "checkpoint={every: 5, keep: 20}"};
  all.insert(all.end(), settings.begin(), settings.end());
  return workspace().launch(workspace().training(layout_folder(run).string(), all));
}

Ended train(const std::string& run, const std::string& text, const Settings& settings) {
  Ended end = run_program(training(run, text, settings), ranks_patience);
  check_no_process_left(run);
  return end;
}

Ended train_to_the_end(const std::string& run, const std::string& text, const Settings& settings) {
  Ended end = train(run, text, settings);
  REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
  return end;
}

// The text whose loss jumps at step 25, and what makes a jump of that.
std::string noisy_text() {
  write_text("noisy.txt", samples_of_steps(25, 25), noise());
  return "noisy.txt";
}

std::string spike_policy(const std::string& action) {
  return "train.spike={window: 8, zscore: 6, action: " + action + "}";
}

void signal_second_of_two(Program& agent, int number) {
  const std::vector<pid_t> workers = workers_by_rank(agent, 2);
  REQUIRE_MESSAGE(workers.size() == 2, agent.errors());
  ::kill(workers[1], number);
}

// The lines of a kind, whatever a later restart says of them.
std::vector<nlohmann::json> lines_of(const std::string& run, const std::string& kind) {
  std::vector<nlohmann::json> lines;
  std::ifstream in(layout_folder(run) / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    nlohmann::json object = nlohmann::json::parse(line);
    if (object.at("kind") == kind) lines.push_back(std::move(object));
  }
  return lines;
}

bool log_says(const std::string& run, int rank, const std::string& words) {
  const fs::path log = layout_folder(run) / "logs" / ("rank-0000" + std::to_string(rank) + ".log");
  return read_file(log).find(words) != std::string::npos;
}

bool says(const nlohmann::json& text, const std::string& words) {
  return text.get<std::string>().find(words) != std::string::npos;
}

void check_one_jump(const std::string& run, const std::string& action) {
  const auto spikes = lines_of(run, "spike");
  REQUIRE(spikes.size() == 1);
  CHECK(spikes[0].at("step") == 25);
  CHECK(spikes[0].at("action") == action);
  CHECK(spikes[0].at("samples") == nlohmann::json({96, 97, 98, 99}));
}

// The last line of the file, and the only one of its kind behind the last restart.
void check_end(const std::string& run, int code, int step, const std::string& words) {
  const auto ends = lines_of(run, "end");
  REQUIRE_FALSE(ends.empty());
  CHECK(ends.back().at("code") == code);
  CHECK(ends.back().at("step") == step);
  CHECK_MESSAGE(says(ends.back().at("reason"), words), ends.back().dump());
  std::ifstream in(layout_folder(run) / "metrics.jsonl");
  std::string last;
  for (std::string line; std::getline(in, line);) last = line;
  CHECK(nlohmann::json::parse(last).at("kind") == "end");
}

// A row of a matrix in a checkpoint of one rank becomes NaN.
void poison_row(const fs::path& checkpoint, const std::string& tensor, std::size_t row) {
  const std::string name = "model-00000.safetensors";
  std::string content = read_file(checkpoint / name);
  std::uint64_t length = 0;
  std::memcpy(&length, content.data(), sizeof length);
  const nlohmann::json header = nlohmann::json::parse(content.substr(sizeof length, length));
  const auto& entry = header.at(tensor);
  REQUIRE(entry.at("dtype") == "F32");
  const auto columns = entry.at("shape").at(1).get<std::size_t>();
  const std::size_t begin = sizeof length + length + entry.at("data_offsets").at(0).get<std::size_t>();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (std::size_t i = 0; i < columns; ++i)
    std::memcpy(content.data() + begin + (row * columns + i) * sizeof nan, &nan, sizeof nan);
  replace_file(checkpoint, name, content);
}

}  // namespace

TEST_CASE("after_a_spike_the_ranks_go_back_and_end_as_ranks_that_never_saw_the_samples") {
  const std::string text = noisy_text();
  const Settings ranks = {"parallel.data=2", "parallel.zero=1"};
  Settings with_policy = ranks;
  with_policy.push_back(spike_policy("rollback"));
  const Ended end = train_to_the_end("went-back", text, with_policy);
  CHECK(end.says("training went back from step 25 to step 15"));
  CHECK(log_says("went-back", 1, "training went back from step 25 to step 15"));
  check_one_jump("went-back", "rollback");
  const auto restarts = lines_of("went-back", "restart");
  REQUIRE(restarts.size() == 1);
  CHECK(restarts[0].at("step") == 15);
  CHECK(restarts[0].at("generation") == 1);
  CHECK(hidden_names(layout_folder("went-back"), ".abandoned-") ==
        std::vector<std::string>{".abandoned-step-00000015-0", ".abandoned-step-00000020-0"});

  Settings first_part = ranks;
  first_part.emplace_back("train.steps=15");
  train_to_the_end("never-saw", text, first_part);
  const fs::path left = checkpoint(layout_folder("never-saw"), 15);
  nlohmann::json manifest = open_manifest(left);
  nlohmann::json history = nlohmann::json::parse(manifest.at("history").get<std::string>());
  history.at("segments").back()["skipped"] = {{60, 40}};
  manifest["history"] = history.dump();
  seal_manifest(left, manifest);
  train_to_the_end("never-saw", text, ranks);
  const Trajectory found = trajectory_of(layout_folder("went-back"));
  const Trajectory expected = trajectory_of(layout_folder("never-saw"));
  CHECK(found.steps.size() == 40);
  CHECK(found.steps == expected.steps);
  CHECK(found.evaluations.at({40, "held"}) == expected.evaluations.at({40, "held"}));
}

TEST_CASE("a_rank_that_is_killed_after_the_ranks_went_back_changes_no_number") {
  const std::string text = noisy_text();
  // So many steps that the kill meets a run, however late it comes.
  const Settings settings = {"parallel.data=2", "train.steps=60", spike_policy("rollback")};
  train_to_the_end("calm", text, settings);
  Program agent(training("stricken", text, settings));
  const fs::path metrics = layout_folder("stricken") / "metrics.jsonl";
  REQUIRE(wait_until(
      [&] {
        return (fs::exists(metrics) && read_file(metrics).find("\"kind\":\"restart\"") != std::string::npos) ||
               !agent.running();
      },
      ranks_patience));
  signal_second_of_two(agent, SIGKILL);
  const Ended end = agent.wait(ranks_patience);
  REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
  CHECK(end.says("restart 1 of"));
  check_no_process_left("stricken");
  const auto restarts = lines_of("stricken", "restart");
  REQUIRE(restarts.size() >= 2);
  CHECK(restarts[0].at("cause") == "the loss jumped at step 25 (train.spike)");
  CHECK(says(restarts[1].at("cause"), "killed by signal 9"));
  // What is skipped was saved before the kill: the noise is met once.
  CHECK(lines_of("stricken", "spike").size() == 1);
  const Trajectory found = trajectory_of(layout_folder("stricken"));
  CHECK(found.steps == trajectory_of(layout_folder("calm")).steps);
  CHECK(found.steps.size() == 60);
}

TEST_CASE("eight_ranks_skip_one_step_alike_and_name_the_samples_of_all_replicas_and_micro_batches") {
  // Each of the two replicas accumulates two micro-batches.
  train_to_the_end(
      "eight-skip", noisy_text(),
      {"parallel.data=2", "parallel.tensor=2", "parallel.pipeline=2", "train.steps=30", spike_policy("skip")});
  check_one_jump("eight-skip", "skip");
  const auto skips = lines_of("eight-skip", "skip");
  REQUIRE(skips.size() == 1);
  CHECK(skips[0].at("samples") == nlohmann::json({96, 97, 98, 99}));
  for (int rank = 0; rank < 8; ++rank) CHECK(log_says("eight-skip", rank, "step 25 was skipped"));
  CHECK(open_manifest(checkpoint(layout_folder("eight-skip"), 30)).at("scalars").at("updates") == "29");
  check_end("eight-skip", 0, 30, "finished");
}

TEST_CASE("a_rank_that_is_killed_within_the_window_changes_no_verdict") {
  const std::string text = noisy_text();
  const Settings settings = {"parallel.data=2", "train.steps=60", "checkpoint={every: 3, keep: 20}",
                             spike_policy("skip")};
  train_to_the_end("window-calm", text, settings);
  Program agent(training("window-killed", text, settings));
  REQUIRE(reaches_step(agent, "window-killed", 20));
  signal_second_of_two(agent, SIGKILL);
  const Ended end = agent.wait(ranks_patience);
  REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
  CHECK(trajectory_of(layout_folder("window-killed")).steps == trajectory_of(layout_folder("window-calm")).steps);
  const auto last_spike = [](const std::string& run) { return lines_of(run, "spike").back(); };
  CHECK(last_spike("window-killed") == last_spike("window-calm"));
  const auto scalars = [](const std::string& run) {
    return open_manifest(checkpoint(layout_folder(run), 60)).at("scalars");
  };
  CHECK(scalars("window-killed") == scalars("window-calm"));
}

// Eight losses are needed for a verdict: a start that had forgotten those before step 22 would see no jump at 25.
TEST_CASE("a_stop_within_the_window_changes_no_verdict") {
  const std::string text = noisy_text();
  const Settings settings = {"parallel.data=2", spike_policy("skip"), "train.steps=30"};
  train_to_the_end("stop-calm", text, settings);
  Settings first = settings;
  first.emplace_back("train.steps=22");
  for (const Settings& part : {first, settings}) train_to_the_end("stop", text, part);
  CHECK(trajectory_of(layout_folder("stop")).steps == trajectory_of(layout_folder("stop-calm")).steps);
  REQUIRE(lines_of("stop", "spike").size() == 1);
  CHECK(lines_of("stop", "spike") == lines_of("stop-calm", "spike"));
  CHECK(open_manifest(checkpoint(layout_folder("stop"), 30)).at("scalars").at("updates") == "29");
}

TEST_CASE("however_a_run_ends_its_last_line_says_so") {
  write_text("easy.txt", {}, noise());
  const auto signal_in_step_3 = [](Program& agent, const std::string& run, int number) {
    REQUIRE(reaches_step(agent, run, 3));
    signal_second_of_two(agent, number);
  };
  const Settings settings = {"parallel.data=2", "train.steps=4000", "supervise.max_restarts=0"};
  Program lost(training("end-lost", "easy.txt", settings));
  signal_in_step_3(lost, "end-lost", SIGKILL);
  CHECK(lost.wait(ranks_patience).exit_code == 4);
  REQUIRE(lines_of("end-lost", "end").size() == 1);
  check_end("end-lost", 4, static_cast<int>(newest_step(layout_folder("end-lost"))), "killed by signal 9");
  Program left(training("end-left", "easy.txt", settings));
  signal_in_step_3(left, "end-left", SIGTERM);
  CHECK(left.wait(ranks_patience).exit_code == 75);
  REQUIRE(lines_of("end-left", "end").size() == 1);
  check_end("end-left", 75, static_cast<int>(newest_step(layout_folder("end-left"))), "interrupted");
}

TEST_CASE("spikes_without_end_stop_all_ranks_with_5_and_the_samples_in_the_metrics") {
  write_text("endless.txt", samples_of_steps(25, 60), noise());
  const Ended end =
      train("endless", "endless.txt",
            {"parallel.data=2", "parallel.tensor=2", "checkpoint={every: 5, keep: 2}", spike_policy("rollback")});
  CHECK(end.exit_code == 5);
  CHECK(end.says("train.spike"));
  CHECK(end.says("metrics.jsonl"));
  const auto spikes = lines_of("endless", "spike");
  REQUIRE(spikes.size() == 4);
  CHECK(spikes[3].at("action") == "stop");
  CHECK(spikes[3].at("samples").size() == batch);
  CHECK(lines_of("endless", "restart").size() == 3);
  check_end("endless", 5, 16, "train.spike");  // each time the noise is met in the first step after the skip
  CHECK(checkpoint_names(layout_folder("endless")).back() == "step-00000015");
}

TEST_CASE("nan_on_one_rank_skips_the_step_on_every_rank_and_ends_the_run_with_5_after_the_policys_count") {
  // One sample of each of the steps 23 to 25 holds a byte whose embedding is NaN. It is the second replica's.
  std::vector<std::int64_t> samples;
  for (const std::int64_t step : {23, 24, 25}) samples.push_back(batch * (step - 1) + batch - 1);
  write_text("nan.txt", samples, "Z");
  const auto start = [](const std::string& run, const std::string& nonfinite) {
    const Settings base = {"model.tie_embeddings=false", "train.nonfinite.skip=" + nonfinite};
    Settings first = base;
    first.emplace_back("train.steps=20");
    train_to_the_end(run, "nan.txt", first);
    poison_row(checkpoint(layout_folder(run), 20), "embedding.token.weight", 'Z');
    Settings second = base;
    second.insert(second.end(), {"parallel.data=2", "train.steps=30"});
    return train(run, "nan.txt", second);
  };
  const auto check_skips = [](const std::string& run) {
    const auto skips = lines_of(run, "skip");
    REQUIRE(skips.size() == 3);
    for (int i = 0; i < 3; ++i) {
      const int step = 23 + i;
      const nlohmann::json& skip = skips[static_cast<std::size_t>(i)];
      CHECK(skip.at("step") == step);
      const int sample = batch * (step - 1);
      CHECK(skip.at("samples") == nlohmann::json({sample, sample + 1, sample + 2, sample + 3}));
      for (const int rank : {0, 1}) CHECK(log_says(run, rank, "step " + std::to_string(step) + " was skipped"));
    }
  };
  const Ended borne = start("nan-borne", "3");
  CHECK_MESSAGE(borne.exit_code == 0, borne.errors);
  check_skips("nan-borne");
  // What the steps did not touch is fit to train on.
  const Trajectory trajectory = trajectory_of(layout_folder("nan-borne"));
  REQUIRE(trajectory.steps.size() == 30);
  for (const long step : {22L, 26L, 30L}) CHECK(trajectory.steps.at(step).find("null") == std::string::npos);
  CHECK(open_manifest(checkpoint(layout_folder("nan-borne"), 30)).at("scalars").at("updates") == "27");

  const Ended ended = start("nan-ended", "2");
  CHECK(ended.exit_code == 5);
  CHECK(ended.says("step 25"));
  CHECK(ended.says("train.nonfinite.skip"));
  check_skips("nan-ended");
  check_end("nan-ended", 5, 25, "train.nonfinite.skip");
  CHECK(ended.says("--set train.optimizer.learning_rate="));
  CHECK(trajectory_of(layout_folder("nan-ended")).last_step() == 25);
  CHECK(checkpoint_names(layout_folder("nan-ended")).back() == "step-00000020");

  // Two of the three such steps before a stop, the third behind it: the count goes on.
  const fs::path stopped = copy_run(layout_folder("nan-borne"), layout_folder("nan-stopped").filename().string());
  for (const int step : {25, 26, 30}) fs::remove_all(checkpoint(stopped, step));
  const auto go_on_to = [](const char* steps) {
    return train("nan-stopped", "nan.txt",
                 {"model.tie_embeddings=false", "train.nonfinite.skip=2", "parallel.data=2", steps});
  };
  const Ended part = go_on_to("train.steps=24");
  REQUIRE_MESSAGE(part.exit_code == 0, part.errors);
  CHECK(open_manifest(checkpoint(stopped, 24)).at("scalars").at("nonfinite.consecutive") == "2");
  const Ended rest = go_on_to("train.steps=30");
  CHECK_MESSAGE(rest.exit_code == 5, rest.errors);
  CHECK(rest.says("resuming from " + checkpoint(stopped, 24).string()));
  check_end("nan-stopped", 5, 25, "train.nonfinite.skip");
}

}  // namespace scaletrain
