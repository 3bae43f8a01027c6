// Whoever chooses the checkpoint that training goes on from has read all of it: also behind the first block of a file's
// checksums, which opening it reads anyway.
#include "checkpoint/format/verified_file.h"
#include "train/rollback.h"
#include "unit/train/train_helpers.h"

using namespace scaletrain;

namespace {

using Steps = std::vector<std::int64_t>;

// Checkpoints of 2, 4, 6, 8.
struct LargeRun : TinyRun {
  LargeRun() {
    overrides_always = {"model.ffn_hidden=40000", "train.steps=8", "evaluate.every=0", "checkpoint.every=2",
                        "checkpoint.keep=10"};
    CHECK(run() == ExitCode::finished);
    REQUIRE(checkpoint_steps() == Steps{8, 6, 4, 2});
  }

  void damage(std::int64_t step) const {
    const std::filesystem::path path = checkpoint(step);
    const std::filesystem::path file = path / "model-00000.safetensors";
    const auto size = static_cast<std::streamoff>(std::filesystem::file_size(file));
    REQUIRE(size > static_cast<std::streamoff>(checksum_block_bytes));
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(size - 1);
    const char byte = static_cast<char>(stream.get());
    stream.seekp(size - 1).put(static_cast<char>(byte ^ 1));
    REQUIRE(stream.good());
    stream.close();
    CHECK(Checkpoint(path).manifest().step == step);  // opening it finds nothing
  }
  std::function<void(const std::string&)> report() {
    return [this](const std::string& text) { notices.push_back(text); };
  }
};

}  // namespace

TEST_CASE("a_start_a_restart_and_a_rollback_pass_over_a_checkpoint_that_is_damaged_behind_the_first_block") {
  LargeRun run;
  const LoadedConfig longer = run.config({"train.steps=20"});
  const std::string newest = run.checkpoint(8).string();
  run.damage(8);
  CHECK(contains(message_of<InputError>([&] { run.prepare(longer, newest); }), "checksum"));
  StartPoint start = run.prepare(longer);
  CHECK(start.step == 6);
  CHECK(run.noticed("step-00000008: not usable, quarantined"));
  // Damaged while the run went on from it, before the run saved one of its own.
  run.damage(6);
  start = restart_point(run.paths, start, run.report());
  CHECK(start.step == 4);
  CHECK(run.noticed("step-00000006: not usable, quarantined"));
  run.damage(4);
  const auto found = checkpoint_before(run.paths.checkpoints(), 9, 1, run.report());
  REQUIRE(found.has_value());
  CHECK(found->manifest().step == 2);
  CHECK(run.noticed("step-00000004: not usable, quarantined"));
}
