// Damaged checkpoints: named, quarantined, never deleted; the older one is used, and if there is none, training does
// not begin anew by itself.
#include <doctest/doctest.h>

#include <functional>
#include <map>

#include "tiny_run.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

// The run as it was after step 180, with the checkpoints of 160 and 180 (and what metrics.jsonl held beyond).
fs::path run_of_two_checkpoints(const std::string& name) {
  fs::path run = copy_run(undisturbed_run(), name);
  for (int step = 20; step <= tiny_steps; step += 20) {
    if (step != 160 && step != 180) fs::remove_all(checkpoint(run, step));
  }
  return run;
}

void flip_byte(const fs::path& file, std::size_t from_end) {
  std::string content = read_file(file);
  REQUIRE(content.size() > from_end);
  char& byte = content[content.size() - 1 - from_end];
  byte = static_cast<char>(byte ^ 0x40);
  write_file(file, content);
}

struct Damage {
  std::string name;
  std::function<void(const fs::path& checkpoint)> apply;
  const char* words;  // that the message must have
};

const std::vector<Damage>& damages() {
  static const std::vector<Damage> all = {
      {"flipped-weight", [](const fs::path& folder) { flip_byte(folder / "model-00000.safetensors", 100); },
       "model-00000.safetensors"},
      {"flipped-moment", [](const fs::path& folder) { flip_byte(folder / "optimizer-00000.safetensors", 5000); },
       "optimizer-00000.safetensors"},
      {"flipped-header",
       [](const fs::path& folder) {
         const fs::path file = folder / "model-00000.safetensors";
         flip_byte(file, read_file(file).size() - 30);
       },
       "model-00000.safetensors"},
      {"flipped-manifest", [](const fs::path& folder) { flip_byte(folder / "manifest.json", 300); }, "manifest.json"},
      {"truncated-file",
       [](const fs::path& folder) {
         const fs::path file = folder / "optimizer-00000.safetensors";
         fs::resize_file(file, fs::file_size(file) / 2);
       },
       "optimizer-00000.safetensors"},
      {"truncated-manifest", [](const fs::path& folder) { fs::resize_file(folder / "manifest.json", 1000); },
       "manifest.json"},
      {"missing-file", [](const fs::path& folder) { fs::remove(folder / "model-00000.safetensors"); },
       "model-00000.safetensors"},
      {"missing-manifest", [](const fs::path& folder) { fs::remove(folder / "manifest.json"); }, "manifest.json"},
      {"mixed-saves",
       [](const fs::path& folder) {
         fs::copy_file(folder.parent_path() / "step-00000160" / "model-00000.safetensors",
                       folder / "model-00000.safetensors", fs::copy_options::overwrite_existing);
       },
       "model-00000.safetensors"},
      {"mixed-saves-with-the-right-checksums",
       [](const fs::path& folder) {
         replace_file(folder, "model-00000.safetensors",
                      read_file(folder.parent_path() / "step-00000160" / "model-00000.safetensors"));
       },
       "two saves are mixed"},
  };
  return all;
}

TEST_CASE("a_damaged_newest_checkpoint_is_named_quarantined_and_the_older_one_used") {
  const Trajectory expected = trajectory_of(undisturbed_run());
  for (const Damage& damage : damages()) {
    CAPTURE(damage.name);
    const fs::path run = run_of_two_checkpoints(damage.name);
    damage.apply(checkpoint(run, 180));
    const Ended end = workspace().run(workspace().training(damage.name, {"evaluate.every=0", "checkpoint.every=1000"}));
    INFO(end.errors);
    CHECK(end.exit_code == 0);
    CHECK(end.says("step-00000180"));
    CHECK(end.says(damage.words));
    CHECK(end.says("quarantined"));
    CHECK(end.says("resuming from " + checkpoint(run, 160).string()));
    CHECK(hidden_names(run, ".damaged-step-00000180").size() == 1);
    CHECK(trajectory_of(run).steps == expected.steps);
  }
}

TEST_CASE("if_every_checkpoint_is_damaged_the_run_stops_and_never_starts_from_scratch") {
  const fs::path run = run_of_two_checkpoints("all-damaged");
  for (const int step : {160, 180}) flip_byte(checkpoint(run, step) / "model-00000.safetensors", 100);
  const std::string metrics = read_file(run / "metrics.jsonl");
  // The second start finds nothing but what the first has quarantined.
  for (int start = 0; start < 2; ++start) {
    const Ended end = workspace().run(workspace().training("all-damaged"));
    CAPTURE(start);
    CHECK_MESSAGE(end.exit_code == 3, end.errors);
    CHECK(end.says("step-00000160"));
    CHECK(end.says("step-00000180"));
    CHECK(end.says("none is usable"));
    CHECK(read_file(run / "metrics.jsonl") == metrics);
  }
  CHECK(hidden_names(run, ".damaged-").size() == 2);
}

TEST_CASE("extra_files_of_another_world_beside_a_checkpoint_are_not_read") {
  const fs::path run = run_of_two_checkpoints("extra-files");
  write_file(checkpoint(run, 180) / "model-00001.safetensors", "left over");
  const Ended end = workspace().run(workspace().training("extra-files"));
  CHECK_MESSAGE(end.exit_code == 0, end.errors);
  CHECK(end.says("resuming from " + checkpoint(run, 180).string()));
  CHECK(trajectory_of(run).steps == trajectory_of(undisturbed_run()).steps);
}

TEST_CASE("a_checkpoint_that_was_moved_elsewhere_still_evaluates_to_the_same_loss") {
  const fs::path there = checkpoint(undisturbed_run(), 120);
  const std::string held = (workspace() / "held.txt").string();
  const Ended before = workspace().run({"evaluate", there.string(), "--data", held, "--json"});
  REQUIRE_MESSAGE(before.exit_code == 0, before.errors);
  const TempFolder elsewhere;
  fs::copy(there, elsewhere / "a renamed one", fs::copy_options::recursive);
  const Ended after = workspace().run({"evaluate", (elsewhere / "a renamed one").string(), "--data", held, "--json"});
  CHECK_MESSAGE(after.exit_code == 0, after.errors);
  const auto losses = [](const Ended& end) {
    nlohmann::json sets = nlohmann::json::parse(end.output);
    for (nlohmann::json& set : sets) set.erase("model");  // where it lies
    return sets;
  };
  CHECK(losses(after) == losses(before));
}

// What lies in a folder of checkpoints after a hard life, and what does not belong there.
TEST_CASE("list_and_verify_tell_everything_that_lies_in_a_folder_of_checkpoints_and_change_nothing") {
  const fs::path run = run_of_two_checkpoints("odd");
  const fs::path checkpoints = run / "checkpoints";
  const auto copy = [&](const std::string& name) {
    fs::copy(checkpoint(run, 180), checkpoints / name, fs::copy_options::recursive);
    return checkpoints / name;
  };
  fs::remove(copy(".saving-step-00000200-0123456789abcdef") / "manifest.json");
  fs::remove(copy(".removing-step-00000020-0") / "manifest.json");
  copy(".abandoned-step-00000180-0");
  write_file(copy(".damaged-step-00000180-0") / "manifest.json", "{}");
  write_file(copy("step-00000100") / "manifest.json", "not even JSON");
  fs::create_directories(checkpoints / "step-00000120");
  write_file(checkpoints / "notes.txt", "mine");
  fs::create_directories(checkpoints / "plots");
  fs::create_directories(checkpoints / "step-00000130" / "manifest.json");
  const auto before = snapshot(run);

  const Ended list = workspace().run({"checkpoint", "list", run.string(), "--json"});
  CHECK_MESSAGE(list.exit_code == 0, list.errors);
  std::map<std::string, nlohmann::json> found;
  for (const nlohmann::json& entry : nlohmann::json::parse(list.output))
    found[fs::path(entry.at("path").get<std::string>()).filename().string()] = entry;
  CHECK(found.size() == 7);
  for (const char* name : {"step-00000160", "step-00000180"}) {
    CHECK(found.at(name).at("problem") == "");
    CHECK(found.at(name).at("quarantined") == "");
  }
  for (const char* name : {"step-00000100", "step-00000120", "step-00000130"}) {
    CHECK(found.at(name).at("problem") != "");
    CHECK(found.at(name).at("quarantined") == "");
  }
  CHECK(found.at(".abandoned-step-00000180-0").at("quarantined") == "abandoned");
  CHECK(found.at(".abandoned-step-00000180-0").at("step") == 180);
  CHECK(found.at(".damaged-step-00000180-0").at("quarantined") == "damaged");
  CHECK(found.at(".damaged-step-00000180-0").at("problem") != "");
  const std::string text = workspace().run({"checkpoint", "list", run.string()}).output;
  CHECK(text.find("step-00000100  unusable: ") != std::string::npos);
  CHECK(text.find("quarantined: abandoned") != std::string::npos);

  // What is broken is older than the newest, by its name.
  const Ended verify = workspace().run({"checkpoint", "verify", run.string(), "--json"});
  CHECK_MESSAGE(verify.exit_code == 0, verify.errors);
  const nlohmann::json answer = nlohmann::json::parse(verify.output);
  CHECK(answer.at("step") == 180);
  CHECK(answer.at("is_newest") == true);
  CHECK(answer.at("unusable").size() == 3);
  CHECK(verify.says("a damaged checkpoint is passed over"));
  CHECK(verify.says("step-00000120: "));
  CHECK(snapshot(run) == before);

  // A newer one that is broken is what was asked for.
  write_file(copy("step-00000190") / "manifest.json", "");
  const Ended newer = workspace().run({"checkpoint", "verify", run.string(), "--json"});
  CHECK(newer.exit_code == 3);
  CHECK(newer.says("step-00000190"));
  CHECK(nlohmann::json::parse(newer.output).at("is_newest") == false);
}

// Of a file with several blocks of checksums, opening reads the first only.
TEST_CASE("damage_behind_the_first_block_of_a_file_is_found_by_a_start_by_pruning_and_by_verify") {
  const std::vector<std::string> settings = {"model.layers=1",   "model.ffn_hidden=20000",
                                             "train.steps=12",   "train.lr_schedule={type: constant, warmup: 1}",
                                             "evaluate.every=0", "checkpoint.every=3"};
  const auto train = [&settings](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> all = settings;
    all.insert(all.end(), more.begin(), more.end());
    return workspace().run(workspace().training(name, all));
  };
  const Ended whole = train("large", {});
  REQUIRE_MESSAGE(whole.exit_code == 0, whole.errors);
  const std::string weights = "model-00000.safetensors";
  constexpr std::size_t block = 4u << 20;
  REQUIRE(fs::file_size(checkpoint(workspace() / "large", 12) / weights) > block + 100);
  const fs::path run = copy_run(workspace() / "large", "large-damaged");
  flip_byte(checkpoint(run, 12) / weights, 99);
  const Ended verify = workspace().run({"checkpoint", "verify", checkpoint(run, 12).string()});
  CHECK_MESSAGE(verify.exit_code == 3, verify.errors);
  CHECK(verify.says("step-00000012/" + weights));
  CHECK(verify.says("at offset 4194304"));
  const Ended again = train("large-damaged", {});
  CHECK_MESSAGE(again.exit_code == 0, again.errors);
  CHECK(again.says("step-00000012: not usable, quarantined"));
  CHECK(again.says("resuming from " + checkpoint(run, 9).string()));
  CHECK(trajectory_of(run).steps == trajectory_of(workspace() / "large").steps);
  // The newest was read for the start; the one before it is not one of the two that stay.
  flip_byte(checkpoint(run, 9) / weights, 99);
  const Ended pruned = train("large-damaged", {"train.steps=13", "checkpoint.keep=2", "checkpoint.every=1000"});
  CHECK_MESSAGE(pruned.exit_code == 0, pruned.errors);
  CHECK(pruned.says("step-00000009: does not verify and does not count as kept"));
  CHECK(checkpoint_names(run) == std::vector<std::string>{"step-00000012", "step-00000013"});
}

TEST_CASE("evaluate_of_a_run_says_which_checkpoint_is_damaged") {
  const fs::path run = run_of_two_checkpoints("evaluate-damaged");
  flip_byte(checkpoint(run, 180) / "model-00000.safetensors", 100);
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"evaluate", run.string()}, {"checkpoint", "verify", run.string()}}) {
    const Ended end = workspace().run(command);
    CHECK_MESSAGE(end.exit_code == 3, end.errors);
    CHECK(end.says("step-00000180/model-00000.safetensors"));
    CHECK(end.says("The next older one is step 160 (not verified); to use it, give " + checkpoint(run, 160).string()));
    CHECK(end.output.empty());
  }
  // Which is not read for that, however large it is; so also of one whose manifest is broken.
  flip_byte(checkpoint(run, 160) / "model-00000.safetensors", 100);
  write_file(checkpoint(run, 180) / "manifest.json", "{");
  const Ended inspect = workspace().run({"checkpoint", "inspect", checkpoint(run, 180).string()});
  CHECK_MESSAGE(inspect.exit_code == 3, inspect.errors);
  CHECK(
      inspect.says("The next older one is step 160 (not verified); to use it, give " + checkpoint(run, 160).string()));
  // Commands that only look change nothing.
  CHECK(hidden_names(run, ".").empty());
}

}  // namespace
}  // namespace scaletrain
