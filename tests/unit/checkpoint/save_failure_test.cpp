// A save that fails at any of its writes, or is stopped before its commit, changes nothing.
#include <set>

#include "checkpoint/catalog.h"
#include "checkpoint_fixture.h"
#include "support/file_size_limit.h"

using namespace scaletrain;

namespace {

struct Run {
  TempFolder folder;
  StoreFixture store{tiny_gpt2_config()};
  Run() {
    store.fill(1);
    save_checkpoint(store.store, save_request(folder.path(), 10));
    store.fill(2);
  }
  // Only the first save is there, whole.
  void check_unchanged(const std::string& message) {
    REQUIRE_FALSE(message.empty());
    REQUIRE(names_in(folder.path()) == std::vector<std::string>{"step-00000010"});
    REQUIRE(verifies(folder / "step-00000010"));
  }
};

}  // namespace

TEST_CASE("save_that_runs_out_of_space_at_any_write_leaves_the_old_checkpoint_and_no_leftovers") {
  Run run;
  const SaveRequest request = save_request(run.folder.path(), 20);
  std::set<std::string> failed_files;
  rlim_t limit = 0;
  for (;; limit += 997) {
    std::string message;
    {
      const FileSizeLimit full(limit);
      message = message_of<InputError>([&] { save_checkpoint(run.store.store, request); });
    }
    if (message.empty()) break;
    run.check_unchanged(message);
    for (const char* name : {"model-00000", "optimizer-00000", "manifest.json"}) {
      if (contains(message, name)) failed_files.insert(name);
    }
  }
  // The loop went through failures in the files' bodies, not only at the first byte, and ended with a good save.
  CHECK(failed_files.size() >= 2);
  CHECK(limit > 20'000);
  CHECK(verifies(run.folder / "step-00000020"));
  CHECK(list_checkpoints(run.folder.path()).size() == 2);
}

TEST_CASE("save_that_may_not_commit_is_abandoned_without_a_trace") {
  Run run;
  for (const std::int64_t step : {10, 20}) {
    SaveRequest request = save_request(run.folder.path(), step);
    request.may_commit = [] { return false; };
    run.check_unchanged(message_of<InputError>([&] { save_checkpoint(run.store.store, request); }));
    request.may_commit = []() -> bool { throw PeerError("lease lost"); };
    CHECK_THROWS_AS(save_checkpoint(run.store.store, request), PeerError);
    run.check_unchanged("thrown");
  }
}

TEST_CASE("save_whose_rename_fails_puts_the_older_checkpoint_of_that_step_back") {
  Run run;
  SaveRequest request = save_request(run.folder.path(), 10);
  request.may_commit = [&] {
    for (const std::string& name : names_in(run.folder.path())) {
      if (name.starts_with(".saving-")) std::filesystem::remove_all(run.folder / name);
    }
    return true;
  };
  const std::string before = read_manifest(run.folder / "step-00000010").save_id;
  run.check_unchanged(message_of<InputError>([&] { save_checkpoint(run.store.store, request); }));
  CHECK(read_manifest(run.folder / "step-00000010").save_id == before);
}

TEST_CASE("save_of_a_step_that_exists_quarantines_the_older_one_unchanged") {
  Run run;
  const std::string before = read_manifest(run.folder / "step-00000010").save_id;
  const SaveResult result = save_checkpoint(run.store.store, save_request(run.folder.path(), 10, 1));
  CHECK(names_in(run.folder.path()) == std::vector<std::string>{".abandoned-step-00000010-0", "step-00000010"});
  CHECK(read_manifest(run.folder / "step-00000010").save_id == result.save_id);
  CHECK(read_manifest(run.folder / ".abandoned-step-00000010-0").save_id == before);
  CHECK(verifies(run.folder / "step-00000010"));
}

TEST_CASE("save_that_stands_for_the_older_one_of_its_step_leaves_nothing_of_it_after_the_next_pruning") {
  Run run;
  const std::string before = read_manifest(run.folder / "step-00000010").save_id;
  SaveRequest request = save_request(run.folder.path(), 10, 1);
  request.supersedes = before;
  const SaveResult result = save_checkpoint(run.store.store, request);
  CHECK(names_in(run.folder.path()) == std::vector<std::string>{".removing-step-00000010-0", "step-00000010"});
  CHECK(read_manifest(run.folder / "step-00000010").save_id == result.save_id);
  CHECK(verifies(run.folder / "step-00000010"));
  remove_leftovers(run.folder.path(), [](const std::string& text) { FAIL(text); }, {});
  CHECK(names_in(run.folder.path()) == std::vector<std::string>{"step-00000010"});
  // Of another save than the one that it stands for, the older one is kept.
  save_checkpoint(run.store.store, request);
  CHECK(names_in(run.folder.path()) == std::vector<std::string>{".abandoned-step-00000010-0", "step-00000010"});
}

TEST_CASE("save_where_the_checkpoints_folder_cannot_be_made_names_it") {
  Run run;
  const auto file = run.folder.write("file", "x");
  CHECK(contains(message_of<InputError>([&] { save_checkpoint(run.store.store, save_request(file, 1)); }), "file"));
  CHECK(contains(message_of<InputError>([&] { save_checkpoint(run.store.store, save_request(file / "below", 1)); }),
                 "file"));
}
