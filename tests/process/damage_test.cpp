// Damaged checkpoints: named, set aside, never deleted; the older one is used, and if there is none, training does not
// begin anew by itself.
#include <doctest/doctest.h>

#include <functional>

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

TEST_CASE("a_damaged_newest_checkpoint_is_named_set_aside_and_the_older_one_used") {
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
    CHECK(end.says("set aside"));
    CHECK(end.says("resuming from " + checkpoint(run, 160).string()));
    CHECK(hidden_names(run, ".damaged-step-00000180").size() == 1);
    CHECK(trajectory_of(run).steps == expected.steps);
  }
}

TEST_CASE("if_every_checkpoint_is_damaged_the_run_stops_and_never_starts_from_scratch") {
  const fs::path run = run_of_two_checkpoints("all-damaged");
  for (const int step : {160, 180}) flip_byte(checkpoint(run, step) / "model-00000.safetensors", 100);
  const std::string metrics = read_file(run / "metrics.jsonl");
  // The second start finds nothing but what the first has set aside.
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
  CHECK(after.output == before.output);
}

TEST_CASE("evaluate_of_a_run_says_which_checkpoint_is_damaged") {
  const fs::path run = run_of_two_checkpoints("evaluate-damaged");
  flip_byte(checkpoint(run, 180) / "model-00000.safetensors", 100);
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"evaluate", run.string()}, {"checkpoint", "verify", run.string()}}) {
    const Ended end = workspace().run(command);
    CHECK_MESSAGE(end.exit_code == 3, end.errors);
    CHECK(end.says("step-00000180/model-00000.safetensors"));
    CHECK(end.output.empty());
  }
  // Commands that only look change nothing.
  CHECK(hidden_names(run, ".").empty());
}

}  // namespace
}  // namespace scaletrain
