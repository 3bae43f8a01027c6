// A checkpoint that cannot be read now may be whole: it is neither quarantined, nor passed over, nor pruned.
#include "base/file.h"
#include "catalog_run.h"
#include "checkpoint/catalog.h"
#include "support/refused_files.h"
#include "support/text.h"

using namespace scaletrain;

namespace {

constexpr const char* model_file = "model-00000.safetensors";

}  // namespace

TEST_CASE("access_without_descriptors_newest_usable_stops_and_quarantines_nothing" *
          doctest::skip(!descriptors_may_run_out)) {
  CatalogRun run;
  for (const std::int64_t step : {1, 2, 3}) run.save(step);
  const auto names = names_in(run.folder.path());
  std::string refused_at[2];
  for (const rlim_t free : {0, 1}) {
    // 0: the folder cannot be listed. 1: all is well until a file's content is read beside the one held open.
    std::string message;
    {
      const DescriptorLimit limit(free);
      message = message_of<FileAccessError>([&] { newest_usable(run.folder.path(), run.report()); });
    }
    CAPTURE(free);
    CHECK(contains(message, "Too many open files"));
    refused_at[free] = message;
    CHECK(run.reports.empty());
    CHECK(names_in(run.folder.path()) == names);
  }
  CHECK(contains(refused_at[1], "step-00000003"));
  CHECK(contains(refused_at[1], "cannot be read now"));
  CHECK(newest_usable(run.folder.path(), run.report())->manifest().step == 3);
}

TEST_CASE("access_to_a_manifest_that_is_refused_stops_every_decision") {
  CatalogRun run;
  for (const std::int64_t step : {1, 2, 3}) run.save(step);
  run.damage(run.folder / "step-00000002");
  const auto names = names_in(run.folder.path());
  {
    const FileLease lease(run.folder / "step-00000003" / "manifest.json");
    if (!lease) {
      MESSAGE("no leases on the file system of temporary files: not tested");
      return;
    }
    const auto entries = list_checkpoints(run.folder.path());
    REQUIRE(entries.size() == 3);
    CHECK(entries[2].unreadable);
    CHECK(contains(entries[2].problem, "step-00000003"));
    CHECK_FALSE(entries[1].unreadable);
    const auto is_named = [](const std::string& message) { return contains(message, "step-00000003"); };
    CHECK(is_named(message_of<FileAccessError>([&] { list_readable_checkpoints(run.folder.path()); })));
    // An older one is not used, and the damaged one is not judged before the newest is known.
    CHECK(is_named(message_of<FileAccessError>([&] { newest_usable(run.folder.path(), run.report()); })));
    CHECK(is_named(message_of<FileAccessError>([&] { quarantine_later(run.folder.path(), 1); })));
    CHECK(names_in(run.folder.path()) == names);
    CHECK(run.reports.empty());
  }
  // A manifest that is missing is damage.
  std::filesystem::remove(run.folder / "step-00000003" / "manifest.json");
  CHECK(newest_usable(run.folder.path(), run.report())->manifest().step == 1);
  CHECK(run.reports.size() == 2);
}

TEST_CASE("access_to_a_tensor_file_that_is_refused_stops_the_fall_back_there") {
  CatalogRun run;
  for (const std::int64_t step : {1, 2, 3}) run.save(step);
  std::filesystem::remove(run.folder / "step-00000003" / model_file);
  {
    const FileLease lease(run.folder / "step-00000002" / model_file);
    if (!lease) {
      MESSAGE("no leases on the file system of temporary files: not tested");
      return;
    }
    CHECK(contains(message_of<FileAccessError>([&] { newest_usable(run.folder.path(), run.report()); }),
                   "step-00000002"));
  }
  CHECK(run.steps() == std::vector<std::int64_t>{2, 1});
  CHECK(std::filesystem::exists(run.folder / ".damaged-step-00000003-0"));
  CHECK(newest_usable(run.folder.path(), run.report())->manifest().step == 2);
}

TEST_CASE("access_that_is_refused_keeps_pruning_from_removing_what_nobody_could_read" *
          doctest::skip(!descriptors_may_run_out)) {
  for (const bool written_here : {false, true}) {
    CAPTURE(written_here);
    CatalogRun run;
    for (std::int64_t step = 1; step <= 5; ++step) run.save(step);
    std::set<std::string> known = written_here ? run.written : std::set<std::string>{};
    const RetentionPolicy newest_only{.keep = 1, .keep_every = {}, .best_save_id = {}};
    if (!written_here) {
      // One descriptor: every manifest can be read, and no content.
      const DescriptorLimit limit(1);
      prune_checkpoints(run.folder.path(), newest_only, known, run.report());
    }
    CHECK(run.steps() == std::vector<std::int64_t>{5, 4, 3, 2, 1});
    CHECK(run.reports.empty() == written_here);
    {
      const FileLease lease(run.folder / "step-00000004" / model_file);
      if (!lease) {
        MESSAGE("no leases on the file system of temporary files: not tested");
        return;
      }
      prune_checkpoints(run.folder.path(), newest_only, known, run.report());
    }
    CHECK(run.steps() == std::vector<std::int64_t>{5, 4, 3});
    CHECK(verifies(run.folder / "step-00000004"));
    CHECK(contains(run.reports.back(), "cannot be read now"));
  }
}
