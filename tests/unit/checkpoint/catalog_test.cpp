#include "checkpoint/catalog.h"

#include "catalog_run.h"

using namespace scaletrain;

TEST_CASE("catalog_orders_by_generation_and_step_as_numbers") {
  CatalogRun run;
  run.save(9);
  run.save(100'000'000);  // one digit more than the names have
  run.save(20);
  std::filesystem::rename(run.folder / "step-00000020", run.folder / "step-5-renamed");
  run.save(10, 1);
  std::filesystem::create_directory(run.folder / "step-00000099");
  std::filesystem::create_directory(run.folder / "notes");
  std::filesystem::create_directory(run.folder / ".saving-step-00000100-abc");
  const auto entries = list_checkpoints(run.folder.path());
  REQUIRE(entries.size() == 5);
  CHECK(entries[0].step == 10);
  CHECK(entries[0].generation == 1);
  CHECK(entries[0].tokens == 10'000);
  CHECK(entries[1].step == 100'000'000);
  CHECK(entries[2].step == 20);
  CHECK(entries[3].step == 9);
  CHECK(contains(entries[4].problem, "manifest.json"));
  CHECK(list_checkpoints(run.folder / "absent").empty());
}

TEST_CASE("catalog_newest_usable_quarantines_damaged_ones_and_falls_back") {
  CatalogRun run;
  CHECK_FALSE(newest_usable(run.folder / "absent", run.report()).has_value());
  CHECK_FALSE(newest_usable(run.folder.path(), run.report()).has_value());
  run.save(1);
  run.save(2);
  run.damage(run.save(3));
  std::filesystem::remove(run.save(4) / "manifest.json");
  const auto found = newest_usable(run.folder.path(), run.report());
  REQUIRE(found.has_value());
  CHECK(found->manifest().step == 2);
  REQUIRE(run.reports.size() == 2);
  CHECK(contains(run.reports[0], "step-00000003: not usable, quarantined as .damaged-step-00000003-0"));
  CHECK(contains(run.reports[0], "checksum"));
  CHECK(names_in(run.folder.path()) == std::vector<std::string>{".damaged-step-00000003-0", ".damaged-step-00000004-0",
                                                                "step-00000001", "step-00000002"});
  // A second one of the same name does not meet the first.
  run.damage(run.save(3));
  CHECK(newest_usable(run.folder.path(), run.report())->manifest().step == 2);
  CHECK(std::filesystem::exists(run.folder / ".damaged-step-00000003-1"));
}

TEST_CASE("catalog_when_none_is_usable_it_never_starts_from_scratch") {
  CatalogRun run;
  run.damage(run.save(1));
  run.damage(run.save(2));
  const std::string message = message_of<InputError>([&] { newest_usable(run.folder.path(), run.report()); });
  CHECK(contains(message, "none is usable"));
  CHECK(contains(message, "step-00000001"));
  CHECK(contains(message, "step-00000002"));
  // What is wrong with each was reported, and is not told again.
  REQUIRE(run.reports.size() == 2);
  for (const std::string& report : run.reports) CHECK(contains(report, "checksum"));
  CHECK_FALSE(contains(message, "checksum"));
  CHECK(contains(message, "for the reasons above"));
  // Nor at the next start, when all have been quarantined.
  CHECK(contains(message_of<InputError>([&] { newest_usable(run.folder.path(), run.report()); }), "none is usable"));
}

TEST_CASE("catalog_quarantine_later_leaves_the_branch_resumable") {
  CatalogRun run;
  for (const std::int64_t step : {5, 10, 15, 20}) run.save(step);
  const auto names = quarantine_later(run.folder.path(), 10);
  REQUIRE(names.size() == 2);
  CHECK(run.steps() == std::vector<std::int64_t>{10, 5});
  CHECK(verifies(names[0]));
  CHECK(quarantine_later(run.folder.path(), 10).empty());
}

TEST_CASE("catalog_pruning_keeps_the_newest_the_multiples_and_the_best") {
  CatalogRun run;
  for (std::int64_t step = 1; step <= 8; ++step) run.save(step * 10);
  const std::string best = list_checkpoints(run.folder.path())[5].save_id;  // step 30
  std::filesystem::create_directories(run.folder / ".saving-step-00000090-x/deep");
  std::filesystem::create_directories(run.folder / ".removing-step-00000001-0");
  std::filesystem::create_directories(run.folder / ".damaged-step-00000001-0");
  run.prune({.keep = 2, .keep_every = 40, .best_save_id = best});
  CHECK(run.steps() == std::vector<std::int64_t>{80, 70, 40, 30});
  CHECK(run.reports.empty());
  CHECK(names_in(run.folder.path()).front() == ".damaged-step-00000001-0");
  CHECK(names_in(run.folder.path()).size() == 5);
}

TEST_CASE("catalog_pruning_never_leaves_fewer_than_two_that_verify") {
  CatalogRun run;
  for (std::int64_t step = 1; step <= 5; ++step) run.save(step);
  run.damage(run.folder / "step-00000005");
  run.damage(run.folder / "step-00000004");
  run.prune({.keep = 2, .keep_every = {}, .best_save_id = {}});
  CHECK(run.steps() == std::vector<std::int64_t>{5, 4, 3, 2});
  CHECK(run.reports.size() == 2);
  // keep: 1 still leaves two.
  CatalogRun other;
  for (std::int64_t step = 1; step <= 3; ++step) other.save(step);
  other.prune({.keep = 1, .keep_every = {}, .best_save_id = {}});
  CHECK(other.steps() == std::vector<std::int64_t>{3, 2});
}

TEST_CASE("catalog_pruning_removes_nothing_while_fewer_than_two_verify") {
  CatalogRun run;
  for (std::int64_t step = 1; step <= 3; ++step) run.save(step);
  run.damage(run.folder / "step-00000001");
  run.damage(run.folder / "step-00000002");
  run.prune({.keep = 1, .keep_every = {}, .best_save_id = {}});
  CHECK(run.steps() == std::vector<std::int64_t>{3, 2, 1});
  CHECK(contains(run.reports.back(), "none was removed"));
}

TEST_CASE("catalog_pruning_does_not_read_again_what_this_process_wrote_or_verified") {
  const RetentionPolicy two{.keep = 2, .keep_every = {}, .best_save_id = {}};
  CatalogRun run;
  for (std::int64_t step = 1; step <= 5; ++step) run.save(step);
  std::set<std::string> known;
  prune_checkpoints(run.folder.path(), two, known, run.report());
  CHECK(known.size() == 2);  // those two were read
  CHECK(run.steps() == std::vector<std::int64_t>{5, 4});
  run.save(6);
  known = run.written;
  // A byte that changed later tells whether the files were read.
  for (const char* name : {"step-00000004", "step-00000005", "step-00000006"}) run.damage(run.folder / name);
  prune_checkpoints(run.folder.path(), two, known, run.report());
  CHECK(run.reports.empty());
  CHECK(run.steps() == std::vector<std::int64_t>{6, 5});
}

TEST_CASE("catalog_pruning_counts_no_known_checkpoint_whose_files_are_missing_or_short") {
  const RetentionPolicy two{.keep = 2, .keep_every = {}, .best_save_id = {}};
  CatalogRun run;
  for (std::int64_t step = 1; step <= 5; ++step) run.save(step);
  std::filesystem::remove(run.folder / "step-00000005" / "optimizer-00000.safetensors");
  std::filesystem::resize_file(run.folder / "step-00000004" / "model-00000.safetensors", 100);
  std::set<std::string> known = run.written;
  prune_checkpoints(run.folder.path(), two, known, run.report());
  CHECK(run.steps() == std::vector<std::int64_t>{5, 4, 3, 2});
  CHECK(verifies(run.folder / "step-00000003"));
  CHECK(verifies(run.folder / "step-00000002"));
  // A save of the same place that this process knows nothing of is read.
  run.save(6);
  known = {list_checkpoints(run.folder.path()).back().save_id};
  run.damage(run.folder / "step-00000006");
  prune_checkpoints(run.folder.path(), {.keep = 1, .keep_every = {}, .best_save_id = {}}, known, run.report());
  CHECK(contains(run.reports.back(), "step-00000004"));
  CHECK(verifies(run.folder / "step-00000003"));
  CHECK(verifies(run.folder / "step-00000002"));
}

TEST_CASE("catalog_pruning_by_a_process_that_lost_the_run_removes_nothing_of_the_next_one") {
  const RetentionPolicy one{.keep = 1, .keep_every = {}, .best_save_id = {}};
  CatalogRun run;
  for (std::int64_t step = 1; step <= 5; ++step) run.save(step);
  const auto under_way = run.folder / ".saving-step-00000006-0123456789abcdef";
  std::filesystem::create_directory(under_way);
  std::set<std::string> known = run.written;
  prune_checkpoints(run.folder.path(), one, known, run.report(), [] { return false; });
  CHECK(run.steps() == std::vector<std::int64_t>{5, 4, 3, 2, 1});
  CHECK(std::filesystem::exists(under_way));
  REQUIRE(run.reports.size() == 1);
  CHECK(contains(run.reports[0], "no longer owns the run"));
  // Lost while it prunes: what is there then stays.
  int asked = 0;
  prune_checkpoints(run.folder.path(), one, known, run.report(), [&asked] { return ++asked <= 2; });
  CHECK(asked == 3);
  CHECK_FALSE(std::filesystem::exists(under_way));
  CHECK(run.steps() == std::vector<std::int64_t>{5, 4, 3, 2});
}

TEST_CASE("catalog_a_crash_at_any_point_of_pruning_leaves_whole_checkpoints") {
  // The states a crash can leave: renamed and not yet deleted, or half deleted under the hidden name.
  CatalogRun run;
  for (std::int64_t step = 1; step <= 4; ++step) run.save(step);
  std::filesystem::rename(run.folder / "step-00000001", run.folder / ".removing-step-00000001-0");
  std::filesystem::remove(run.folder / ".removing-step-00000001-0" / "manifest.json");
  CHECK(run.steps() == std::vector<std::int64_t>{4, 3, 2});
  CHECK(newest_usable(run.folder.path(), run.report())->manifest().step == 4);
  run.prune({.keep = 2, .keep_every = {}, .best_save_id = {}});
  CHECK(names_in(run.folder.path()) == std::vector<std::string>{"step-00000003", "step-00000004"});
}

// Opening a checkpoint reads the first block of each file. What lies behind it is read by whoever verifies.
TEST_CASE("catalog_sees_damage_behind_the_first_block_at_a_start_and_when_it_prunes") {
  ModelConfig model = tiny_gpt2_config();
  model.vocab = 100'000;  // 4.8 MB of embeddings
  StoreFixture store(model);
  TempFolder folder;
  for (const std::int64_t step : {1, 2, 3, 4}) save_checkpoint(store.store, save_request(folder.path(), step));
  const auto damage = [&folder](const char* name) {
    const auto file = folder / name / "model-00000.safetensors";
    REQUIRE(std::filesystem::file_size(file) > checksum_block_bytes + 5000);
    flip_byte(file, checksum_block_bytes + 4000);
    Checkpoint(folder / name);  // opens all the same
  };
  std::vector<std::string> reports;
  const auto report = [&reports](const std::string& text) { reports.push_back(text); };
  damage("step-00000003");
  std::set<std::string> known;
  prune_checkpoints(folder.path(), {.keep = 2, .keep_every = {}, .best_save_id = {}}, known, report);
  REQUIRE(reports.size() == 1);
  CHECK(contains(reports[0], "step-00000003: does not verify and does not count as kept"));
  CHECK(names_in(folder.path()) == std::vector<std::string>{"step-00000002", "step-00000003", "step-00000004"});
  damage("step-00000004");
  CHECK(newest_usable(folder.path(), report)->manifest().step == 2);
  CHECK(names_in(folder.path()) ==
        std::vector<std::string>{".damaged-step-00000003-0", ".damaged-step-00000004-0", "step-00000002"});
}
