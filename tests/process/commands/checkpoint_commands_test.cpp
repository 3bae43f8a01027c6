// What is told of a run's checkpoints: list, inspect, verify, and which of them is the best.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>

#include "models.h"
#include "process/tiny_run.h"
#include "refusal.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

TEST_CASE("list_inspect_and_verify_tell_what_is_there") {
  const std::string run = undisturbed_run().string();
  const Ended list = workspace().run({"checkpoint", "list", run, "--json"});
  REQUIRE_MESSAGE(list.exit_code == 0, list.errors);
  const nlohmann::json entries = nlohmann::json::parse(list.output);
  REQUIRE(entries.size() == 10);
  CHECK(entries.at(0).at("step") == 200);
  CHECK(entries.at(9).at("step") == 20);
  // The text's last sample, which is among those that were read, is not full: only tokens that exist are counted.
  const std::uintmax_t in_last = fs::file_size(workspace() / "train.txt") % 32;
  CHECK(in_last == 15);
  CHECK(entries.at(0).at("tokens") == 200 * 4 * 32 - (32 - in_last));
  const Ended inspect = workspace().run({"checkpoint", "inspect", run, "--json"});
  REQUIRE_MESSAGE(inspect.exit_code == 0, inspect.errors);
  const nlohmann::json inside = nlohmann::json::parse(inspect.output);
  CHECK(inside.at("step") == 200);
  std::int64_t trained = 0;
  for (const nlohmann::json& tensor : inside.at("tensors")) {
    if (tensor.at("role") != "trained") continue;
    std::int64_t elements = 1;
    for (const nlohmann::json& extent : tensor.at("shape")) elements *= extent.get<std::int64_t>();
    trained += elements;
  }
  CHECK(trained == 34720);
  CHECK(workspace().run({"checkpoint", "verify", run}).exit_code == 0);
  const Ended verified = workspace().run({"checkpoint", "verify", run, "--json"});
  REQUIRE_MESSAGE(verified.exit_code == 0, verified.errors);
  const nlohmann::json answer = nlohmann::json::parse(verified.output);
  CHECK(answer.at("verified") == true);
  CHECK(answer.at("save_id") == inside.at("save_id"));
  check_refused(workspace().run({"checkpoint", "list", (workspace() / "nowhere").string()}), 3, {"nowhere"});
}

TEST_CASE("list_tells_of_damaged_and_quarantined_checkpoints_where_their_steps_belong") {
  const fs::path run = copy_run(undisturbed_run(), "list-of-damaged");
  const fs::path checkpoints = run / "checkpoints";
  for (const char* name : {"step-00000200", "step-00000120"})
    std::ofstream(checkpoints / name / "manifest.json") << "no manifest";
  fs::rename(checkpoints / "step-00000160", checkpoints / ".damaged-step-00000160-0");
  const Ended list = workspace().run({"checkpoint", "list", run.string()});
  REQUIRE_MESSAGE(list.exit_code == 0, list.errors);
  std::size_t at = 0;
  for (const char* words :
       {"step-00000200  unusable", "step-00000180  step 180", "step-00000160-0  step 160", "quarantined: damaged",
        "step-00000140  step 140", "step-00000120  unusable", "step-00000100  step 100", "step-00000020  step 20"}) {
    at = list.output.find(words, at);
    CHECK_MESSAGE(at != std::string::npos, words, " comes not next in\n", list.output);
  }
}

TEST_CASE("list_of_a_folder_without_checkpoints_is_an_error_unless_it_is_a_run") {
  fs::create_directories(workspace() / "plain");
  check_refused(workspace().run({"checkpoint", "list", "plain"}), 3, {"plain", "no checkpoints here"});
  const fs::path run = copy_run(undisturbed_run(), "no-checkpoints");
  for (const std::string& name : checkpoint_names(run)) fs::remove_all(run / "checkpoints" / name);
  for (const char* path : {"no-checkpoints", "no-checkpoints/checkpoints"}) {
    const Ended empty = workspace().run({"checkpoint", "list", path, "--json"});
    CHECK(empty.exit_code == 0);
    CHECK(nlohmann::json::parse(empty.output).empty());
    CHECK(empty.says("no checkpoints in"));
  }
}

TEST_CASE("list_marks_the_best_checkpoint_and_counts_bytes_as_the_metrics_do") {
  const Ended run = workspace().run(workspace().training(
      "best", {"train.steps=40", "evaluate.every=10", "checkpoint.every=10", "train.optimizer.learning_rate=0.05",
               "early_stop={metric: validation/held/loss, patience: 1000}"}));
  REQUIRE_MESSAGE(run.exit_code == 0, run.errors);
  const Trajectory found = trajectory_of(workspace() / "best");
  long best_step = 0;
  double best = INFINITY;
  for (const auto& entry : found.evaluations) {
    if (std::stod(entry.second) < best) {
      best = std::stod(entry.second);
      best_step = entry.first.first;
    }
  }
  std::map<long, std::uint64_t> bytes;
  std::ifstream metrics(workspace() / "best" / "metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) {
    const nlohmann::json object = nlohmann::json::parse(line);
    if (object.at("kind") == "checkpoint") bytes[object.at("step").get<long>()] = object.at("bytes");
  }
  const Ended list = workspace().run({"checkpoint", "list", "best", "--json"});
  REQUIRE_MESSAGE(list.exit_code == 0, list.errors);
  const nlohmann::json entries = nlohmann::json::parse(list.output);
  REQUIRE(entries.size() == 4);
  for (const nlohmann::json& entry : entries) {
    const long step = entry.at("step").get<long>();
    CHECK(entry.at("best").get<bool>() == (step == best_step));
    CHECK(entry.at("bytes").get<std::uint64_t>() == bytes.at(step));
  }
  const std::string text = workspace().run({"checkpoint", "list", "best"}).output;
  const std::size_t mark = text.find("  best\n");
  REQUIRE(mark != std::string::npos);
  const std::string line = text.substr(0, mark).substr(text.rfind('\n', mark - 1) + 1);
  CHECK(line.find("  step " + std::to_string(best_step) + "  ") != std::string::npos);
  CHECK(text.find("  best\n", mark + 1) == std::string::npos);
  // The best loss of the scalars is to be read by people.
  const std::string& spelled = found.evaluations.at({best_step, "held"});
  const Ended all = workspace().run({"checkpoint", "inspect", "best", "--all"});
  CHECK(all.output.find("(" + spelled + ")\n") != std::string::npos);
}

// Overfits: trained on one letter, the loss on other text rises after the first evaluation, and the run stops early.
const fs::path& overfitted_run() {
  static const fs::path run = [] {
    workspace().write("letter.txt", std::string(2000, 'x'));
    const Ended end = workspace().run(workspace().training(
        "overfitted", {"data.train.0.path=letter.txt", "train.optimizer.learning_rate=3e-2", "evaluate.every=10",
                       "early_stop={metric: validation/held/loss, patience: 3}"}));
    REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
    REQUIRE(end.says("stopping early"));
    return workspace() / "overfitted";
  }();
  return run;
}

TEST_CASE("the_best_checkpoint_of_a_run_is_taken_if_asked_for_and_else_named") {
  const std::string run = overfitted_run().string();
  const nlohmann::json entries = nlohmann::json::parse(workspace().run({"checkpoint", "list", run, "--json"}).output);
  const auto best = std::find_if(entries.begin(), entries.end(), [](const auto& entry) { return entry.at("best"); });
  REQUIRE(best != entries.end());
  const std::string path = best->at("path");
  const std::string name = fs::path(path).filename().string();
  REQUIRE(path != entries.at(0).at("path"));
  const std::string folder = (workspace() / "exported-best").string();
  const std::vector<std::vector<std::string>> commands = {
      {"evaluate", run, "--json"},
      {"generate", run, "--prompt", "the ", "--greedy", "--max-tokens", "4"},
      {"checkpoint", "inspect", run},
      {"checkpoint", "verify", run},
      {"checkpoint", "export", run, "--to", "huggingface", "--output", folder}};
  for (std::vector<std::string> command : commands) {
    CAPTURE(command);
    const Ended newest = workspace().run(command);
    CHECK_MESSAGE(newest.exit_code == 0, newest.errors);
    CHECK(newest.says("using " + entries.at(0).at("path").get<std::string>() + " (step"));
    CHECK(newest.says("; " + name + " (validation/held/loss "));
    CHECK(newest.says(" is pinned as the best: --best takes it"));
    CHECK(newest.says("--best takes it"));
    fs::remove_all(folder);
    std::vector<std::string> same = command;
    *std::find(same.begin(), same.end(), run) = path;
    const Ended given = workspace().run(same);
    fs::remove_all(folder);
    command.emplace_back("--best");
    const Ended asked = workspace().run(command);
    CHECK_MESSAGE(asked.exit_code == 0, asked.errors);
    CHECK(asked.output == given.output);
    CHECK(asked.says("using " + path + " (step"));
    CHECK_FALSE(given.says("using"));
  }
  CHECK(loss_of(workspace().run({"evaluate", run, "--json", "--best"})) <
        loss_of(workspace().run({"evaluate", run, "--json"})));
}

TEST_CASE("averages_of_weights_are_exported_and_refused_where_there_are_none") {
  check_refused(workspace().run({"evaluate", newest(), "--ema"}), 2, {"holds no averages", "train.ema"});
  const Ended end = workspace().run(workspace().training("averaged", {"train.ema={decay: 0.5}", "evaluate.ema=true"}));
  REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
  const std::string run = (workspace() / "averaged").string();
  const auto exported = [&](const std::string& name, const std::vector<std::string>& more) {
    const std::string folder = (workspace() / name).string();
    std::vector<std::string> command = {"checkpoint", "export", run, "--to", "huggingface", "--output", folder};
    command.insert(command.end(), more.begin(), more.end());
    const Ended written = workspace().run(command);
    REQUIRE_MESSAGE(written.exit_code == 0, written.errors);
    return loss_of(workspace().run({"evaluate", folder, "--tokenizer", "bytes", "--data", held(), "--json"}));
  };
  const auto evaluated = [&](const std::vector<std::string>& more) {
    std::vector<std::string> command = {"evaluate", run, "--data", held(), "--json"};
    command.insert(command.end(), more.begin(), more.end());
    return loss_of(workspace().run(command));
  };
  CHECK(exported("of-weights", {}) == evaluated({}));
  CHECK(exported("of-averages", {"--ema"}) == evaluated({"--ema"}));
  CHECK(evaluated({}) != evaluated({"--ema"}));
  check_refused(workspace().run({"evaluate", (workspace() / "of-averages").string(), "--ema", "--data", held()}), 2,
                {"--ema", "is a Hugging Face folder"});
}

TEST_CASE("best_is_refused_where_there_is_none") {
  check_refused(workspace().run({"evaluate", newest(), "--best"}), 2, {"--best", "is no run folder"});
  check_refused(workspace().run({"checkpoint", "verify", undisturbed_run().string(), "--best"}), 3,
                {"--best", "no checkpoint is pinned as the best", "early_stop"});
  const fs::path run = copy_run(overfitted_run(), "best-is-gone");
  const nlohmann::json entries =
      nlohmann::json::parse(workspace().run({"checkpoint", "list", run.string(), "--json"}).output);
  for (const nlohmann::json& entry : entries)
    if (entry.at("best")) fs::remove_all(entry.at("path").get<std::string>());
  check_refused(workspace().run({"evaluate", run.string(), "--best"}), 3, {"--best", "not there any more"});
  CHECK(workspace().run({"evaluate", run.string()}).exit_code == 0);
}

TEST_CASE("inspect_sums_up_unless_it_is_asked_for_all") {
  const Ended summary = workspace().run({"checkpoint", "inspect", overfitted_run().string()});
  REQUIRE_MESSAGE(summary.exit_code == 0, summary.errors);
  CHECK(std::count(summary.output.begin(), summary.output.end(), '\n') <= 24);
  for (const char* part : {"model        2 layers, hidden 32, 4 heads, context 32", " trained F32: 34,720 elements, ",
                           " optimizer state F32: 69,440 elements, ", "stopped      validation/held/loss has not",
                           "best loss    ", "--all"})
    CHECK_MESSAGE(summary.output.find(part) != std::string::npos, part);
  const Ended all = workspace().run({"checkpoint", "inspect", overfitted_run().string(), "--all"});
  REQUIRE_MESSAGE(all.exit_code == 0, all.errors);
  for (const char* part : {"early_stop.best = ", "/exp_avg_sq", "global_batch: 4"})
    CHECK_MESSAGE(all.output.find(part) != std::string::npos, part);
}

}  // namespace
}  // namespace scaletrain
