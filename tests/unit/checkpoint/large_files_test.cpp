// Checkpoints whose files have several blocks of checksums. Opening one reads the first block of each file, and so
// finds what is wrong there; what lies behind it only verifying finds.
#include "catalog_run.h"
#include "checkpoint/format/verified_file.h"

using namespace scaletrain;

namespace {

ModelConfig large_vocabulary() {
  ModelConfig model = tiny_gpt2_config();
  model.vocab = 100'000;  // an embedding of 4.8 MB
  return model;
}

void damage_behind_first_block(const std::filesystem::path& file, std::uint64_t offset) {
  REQUIRE(offset >= checksum_block_bytes);
  REQUIRE(offset < std::filesystem::file_size(file));
  flip_byte(file, offset);
}

}  // namespace

TEST_CASE("large_files_are_verified_to_their_end_when_a_run_looks_for_its_newest_checkpoint") {
  CatalogRun run(large_vocabulary());
  run.save(1);
  for (const char* name : {"model-00000.safetensors", "optimizer-00000.safetensors"}) {
    for (const bool is_last : {false, true}) {
      CAPTURE(name);
      CAPTURE(is_last);
      const std::filesystem::path newest = run.save(2);
      const std::uint64_t bytes = std::filesystem::file_size(newest / name);
      const std::uint64_t at = is_last ? bytes - 1 : checksum_block_bytes;
      damage_behind_first_block(newest / name, at);
      // Or the case shows nothing that smaller files do not.
      CHECK(Checkpoint(newest).manifest().step == 2);
      const std::string block =
          "bytes at offset " + std::to_string(at / checksum_block_bytes * checksum_block_bytes) + " does not match";
      const std::string problem = message_of<InputError>([&] { Checkpoint(newest).verify(); });
      CHECK(contains(problem, name));
      CHECK(contains(problem, block));
      run.reports.clear();
      const auto found = newest_usable(run.folder.path(), run.report());
      REQUIRE(found.has_value());
      CHECK(found->manifest().step == 1);
      REQUIRE(run.reports.size() == 1);
      CHECK(contains(run.reports[0], "step-00000002: not usable, quarantined as "));
      CHECK(contains(run.reports[0], block));
      CHECK(run.steps() == std::vector<std::int64_t>{1});
    }
  }
}

TEST_CASE("large_files_that_are_damaged_at_their_end_do_not_count_as_kept_when_others_are_pruned") {
  CatalogRun run(large_vocabulary());
  for (std::int64_t step = 1; step <= 4; ++step) run.save(step);
  const std::filesystem::path file = run.folder / "step-00000004" / "model-00000.safetensors";
  damage_behind_first_block(file, std::filesystem::file_size(file) - 1);
  run.prune({.keep = 2, .keep_every = {}, .best_save_id = {}});
  CHECK(run.steps() == std::vector<std::int64_t>{4, 3, 2});
  REQUIRE(run.reports.size() == 1);
  CHECK(contains(run.reports[0], "step-00000004: does not verify and does not count as kept"));
  // One that is whole among three: nothing goes.
  damage_behind_first_block(run.folder / "step-00000002" / "optimizer-00000.safetensors", checksum_block_bytes);
  run.prune({.keep = 1, .keep_every = {}, .best_save_id = {}});
  CHECK(run.steps() == std::vector<std::int64_t>{4, 3, 2});
  CHECK(contains(run.reports.back(), "none was removed"));
}
