// Saves that fail, disks that are too small, and what stays: what a run does about it, as ranks in threads.
#include <cstdlib>

#include "base/file.h"
#include "train/saving/checkpoint_room.h"
#include "train/saving/checkpointer.h"
#include "train/saving/retention.h"
#include "train/saving/save_notices.h"
#include "unit/train/ranks_run.h"

using namespace scaletrain;

namespace {

namespace fs = std::filesystem;
using Steps = std::vector<std::int64_t>;

std::string log_of(const TinyRun& run) {
  return TempFolder::read(run.paths.folder / "logs" / "rank-00000.log");
}

int occurrences(const std::string& text, std::string_view part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

bool has_hidden(const TinyRun& run, std::string_view prefix) {
  for (const auto& entry : fs::directory_iterator(run.paths.checkpoints()))
    if (entry.path().filename().string().starts_with(prefix)) return true;
  return false;
}

// A disk on which so many checkpoints fit and no more: asked right before a commit.
std::function<bool()> disk_for(const TinyRun& run, std::size_t checkpoints) {
  return [&run, checkpoints] {
    if (has_hidden(run, ".saving-") && run.checkpoint_steps().size() >= checkpoints)
      throw NoSpaceError("model-00000.safetensors: writing failed: no space");
    return true;
  };
}

std::vector<ExitCode> run_by(int ranks, RanksRun& run, const std::vector<std::string>& overrides) {
  if (ranks == 1) return {run.run(overrides)};
  return run.run_ranks(ranks, overrides);
}

void flip_a_byte(const fs::path& checkpoint) {
  std::fstream file(checkpoint / "model-00000.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(3000);
  const char byte = static_cast<char>(file.get());
  file.seekp(3000);
  file.put(static_cast<char>(byte ^ 1));
}

struct BestRun : RisingRun {
  std::optional<std::string> best() const {
    const fs::path newest = list_checkpoints(paths.checkpoints()).front().path;
    return read_state(read_manifest(newest), newest.string()).best_save_id;
  }
};
std::string save_id_of(const fs::path& checkpoint) {
  return read_manifest(checkpoint).save_id;
}

const std::string stop_policy = "early_stop={metric: validation/a/loss, patience: 100}";

}  // namespace

TEST_CASE("the_best_checkpoint_stays_pinned_under_a_config_that_asks_for_none") {
  for (const std::vector<std::string>& later :
       {std::vector<std::string>{}, {stop_policy, "checkpoint.best=false"}, {"early_stop=null"}}) {
    CAPTURE(later);
    BestRun run;
    CHECK(run.run({stop_policy}, 7) == ExitCode::interrupted);
    const std::string best = Checkpoint(run.checkpoint(2)).manifest().save_id;
    CHECK(run.best() == best);
    CHECK(run.run(later) == ExitCode::finished);
    CHECK(run.checkpoint_steps() == Steps{14, 12, 2});
    CHECK(run.best() == best);
  }
}

TEST_CASE("the_best_by_another_metric_takes_the_place_of_the_pinned_one") {
  BestRun run;
  CHECK(run.run({stop_policy}, 7) == ExitCode::interrupted);
  CHECK(run.run({"early_stop={metric: validation/b/loss, patience: 100}"}) == ExitCode::finished);
  const Steps steps = run.checkpoint_steps();
  CHECK(std::find(steps.begin(), steps.end(), 2) == steps.end());
  CHECK(run.best() != std::nullopt);
  CHECK(steps.size() >= 2);
}

TEST_CASE("after_the_evaluated_data_changed_the_best_of_before_stays_pinned_until_there_is_another") {
  BestRun run;
  CHECK(run.run({stop_policy}, 7) == ExitCode::interrupted);
  REQUIRE(run.best() == save_id_of(run.checkpoint(2)));
  // Eight samples instead of four: every later loss is above that of step 2, and yet the first is the best so far.
  CHECK(run.run({stop_policy, "evaluate.batches=2"}, 1) == ExitCode::interrupted);
  CHECK(run.best() == save_id_of(run.checkpoint(8)));
  CHECK(contains(log_of(run), "validation/a/loss: it is now measured over 8 samples, before over 4"));
  CHECK(contains(log_of(run), "its checkpoint stays pinned until another is the best"));
}

TEST_CASE("a_best_state_whose_save_failed_is_told_as_lost_and_the_pinned_one_stays") {
  BestRun run;
  run.overrides_always.emplace_back("checkpoint.background=false");
  run.hooks.may_commit = [&run] { return !(has_hidden(run, ".saving-step-00000002")); };
  CHECK(run.run({stop_policy}) == ExitCode::finished);
  CHECK(contains(log_of(run), "step 2: the checkpoint was not saved"));
  CHECK(contains(log_of(run), "this best one is not kept"));
  CHECK(run.best() == std::nullopt);  // none of the later evaluations is better than that of step 2
}

TEST_CASE("a_last_save_that_fails_says_what_is_lost_and_what_to_do") {
  TinyRun run;
  run.hooks.may_commit = [&run] { return !has_hidden(run, ".saving-step-00000012"); };
  const std::string told = message_of<InputError>([&run] { run.run({}); });
  CHECK(contains(told, "step 12: the checkpoint was not saved: "));
  CHECK(contains(told,
                 "The 2 steps since the checkpoint of step 10 are lost. Mend that (where the disk is full, free "
                 "space or lower checkpoint.keep) and start the run again: it goes on from there"));
  TinyRun first;
  first.hooks.may_commit = [&first] { return !has_hidden(first, ".saving-step-00000003"); };
  CHECK(contains(message_of<InputError>([&first] { first.run({}, 3); }),
                 "No checkpoint was written before: the 3 steps that were trained are lost. "));
}

TEST_CASE("a_process_that_resumes_does_not_read_again_what_was_read_for_it") {
  TinyRun run;
  CHECK(run.run({"checkpoint.keep=2"}, 6) == ExitCode::interrupted);
  REQUIRE(run.checkpoint_steps() == Steps{6, 5});
  const StartPoint start = run.prepare(run.config({"checkpoint.keep=2", "checkpoint.every=2"}));
  // A byte that changes after the start would be found by whoever read the file again.
  run.hooks.entered = [&run, damaged = false](std::int64_t step, bool) mutable {
    if (step == 6 && !std::exchange(damaged, true)) flip_a_byte(run.checkpoint(6));
  };
  CHECK(run.train(start, 3) == ExitCode::interrupted);
  CHECK_FALSE(contains(log_of(run), "does not verify"));
  CHECK(run.checkpoint_steps() == Steps{9, 8});
}

TEST_CASE("a_smaller_keep_and_leftovers_are_seen_to_at_the_start") {
  TinyRun run;
  CHECK(run.run({"checkpoint.every=2", "checkpoint.keep=10"}, 9) == ExitCode::interrupted);
  REQUIRE(run.checkpoint_steps() == Steps{9, 8, 6, 4, 2});
  fs::create_directory(run.paths.checkpoints() / ".saving-step-00000010-0123");
  run.prepare(run.config({"checkpoint.keep=4"}));
  CHECK(run.checkpoint_steps() == Steps{9, 8, 6, 4, 2});  // one too many is left to the next save
  CHECK_FALSE(has_hidden(run, ".saving-"));
  run.prepare(run.config({"checkpoint.keep=2", "checkpoint.keep_every=4"}));
  CHECK(run.checkpoint_steps() == Steps{9, 8, 4});
  CHECK(run.noticed("step-00000002 was removed: checkpoint.keep is 2"));
  // An older one that does not verify does not count as the second.
  flip_a_byte(run.checkpoint(8));
  run.prepare(run.config({"checkpoint.keep=2", "checkpoint.keep_every=7"}));
  CHECK(run.checkpoint_steps() == Steps{9, 8, 4});
}

TEST_CASE("a_disk_that_is_full_costs_old_checkpoints_down_to_two_and_no_save") {
  for (const int ranks : {1, 2}) {
    for (const char* background : {"checkpoint.background=false", "checkpoint.background=true"}) {
      CAPTURE(ranks);
      CAPTURE(background);
      RanksRun run;
      run.hooks.may_commit = disk_for(run, 3);
      const std::vector<std::string> overrides = {"checkpoint.every=2", background,
                                                  "parallel.data=" + std::to_string(ranks)};
      REQUIRE(all_are(run_by(ranks, run, overrides), ExitCode::finished));
      CHECK(run.checkpoint_steps() == Steps{12, 10, 8});
      for (const CheckpointRecord& record : run.metrics().checkpoints) CHECK(record.failure.empty());
      CHECK(contains(log_of(run), "no space"));
      CHECK(contains(log_of(run), "step-00000002 was removed to make some"));
    }
  }
}

TEST_CASE("a_disk_that_is_full_with_two_checkpoints_fails_saves_and_keeps_both") {
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    RanksRun run;
    run.hooks.may_commit = disk_for(run, 2);
    CHECK_THROWS(run_by(
        ranks, run, {"checkpoint.every=2", "checkpoint.background=true", "parallel.data=" + std::to_string(ranks)}));
    CHECK(run.checkpoint_steps() == Steps{4, 2});
    const std::string log = log_of(run);
    CHECK(contains(log, "step 6: the checkpoint was not saved, training goes on and tries again within 1 min"));
    CHECK(contains(log, "3 saves in a row have failed; what was trained since the checkpoint of step 4 would be lost"));
    // Each of the three that training goes on from is told once; that of the run's end is thrown.
    CHECK(occurrences(log, "writing failed: no space") == 3);
    CHECK(occurrences(log, "was not saved") == 3);
    CHECK_FALSE(has_hidden(run, "."));
  }
}

TEST_CASE("a_save_that_failed_is_tried_again_before_the_next_one_is_due") {
  TinyRun run;
  const LoadedConfig loaded = run.config({"checkpoint.every=1000", "checkpoint.background=false"});
  const Config& config = loaded.config;
  const PhasePlan plan = make_run_plan(config, 257, 1).phases.front();
  const ShardLayout layout = plan.layout(Rank(0));
  const auto backend = make_reference_backend(DType::f32);
  const auto stream = backend->make_stream();
  ParamStore store(*backend, plan.table, layout, plan.store_options(DType::f32));
  Log log({.file = run.folder / "log.txt"});
  const RunPaths paths(run.folder.path());
  bool is_broken = true;
  RunState state;
  Checkpointer checkpoints({.config = config,
                            .plan = plan,
                            .stream = *stream,
                            .store = store,
                            .rank = Rank(0),
                            .paths = paths,
                            .log = log,
                            .tokenizer_files = {},
                            .fingerprint = "",
                            .may_commit = [&is_broken] { return !is_broken; },
                            .entered = {},
                            .retry_seconds = 0.0},
                           state);
  state.step = 1;
  CHECK_FALSE(checkpoints.due_by_time());
  checkpoints.save({});
  const auto is_due_soon = [&checkpoints] {
    for (int i = 0; i < 1000 && !checkpoints.due_by_time(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return checkpoints.due_by_time();
  };
  CHECK(is_due_soon());
  state.step = 2;
  checkpoints.save({});
  CHECK(is_due_soon());
  is_broken = false;
  state.step = 3;
  checkpoints.save({});
  CHECK_FALSE(checkpoints.due_by_time());
  CHECK(contains(TempFolder::read(run.folder / "log.txt"), "step 3: saved again, after 2 saves that failed"));
}

TEST_CASE("the_pause_before_the_next_try_doubles_to_a_quarter_of_an_hour_and_is_long_where_trying_takes_long") {
  TempFolder folder;
  Log log({.file = folder / "log.txt"});
  SaveNotices notices({.log = log}, 7);
  CHECK_FALSE(notices.retry_due(1e9));
  for (const double pause : {60.0, 120.0, 240.0, 480.0, 900.0, 900.0}) {
    notices.failed(9, false, 1.0, "no");
    CHECK(notices.retry_due(pause));
    CHECK_FALSE(notices.retry_due(0.99 * pause));
  }
  for (int i = 0; i < 100; ++i) notices.failed(9, false, 1.0, "no");
  CHECK(notices.retry_due(900.0));
  notices.failed(9, false, 600.0, "no");
  CHECK(notices.retry_due(6000.0));
  CHECK_FALSE(notices.retry_due(5900.0));
  notices.saved(10, 1.0);
  CHECK_FALSE(notices.retry_due(1e9));
  notices.failed(11, false, 1.0, "no");
  CHECK(notices.retry_due(60.0));
}

TEST_CASE("the_grace_times_figure_is_named_with_its_source_and_remedy") {
  for (const char* name : {"SCALETRAIN_GRACE_SECONDS", "SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST"}) ::unsetenv(name);
  CHECK_FALSE(grace_seconds().has_value());
  const auto warned = [] {
    TempFolder folder;
    {
      Log log({.file = folder / "log.txt"});
      SaveNotices notices({.log = log, .background = true, .grace_seconds = grace_seconds()}, 0);
      notices.saved(5, 15.1);  // twice that: one under way and the last one
    }
    return TempFolder::read(folder / "log.txt");
  };
  ::setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1", 1);
  CHECK(contains(warned(), "given 30 s (terminationGracePeriodSeconds"));
  CHECK(contains(warned(), "leaving may take 30.2 s"));
  ::setenv("SLURM_JOB_ID", "1", 1);
  CHECK(contains(warned(), "given 30 s (SLURM's KillWait"));
  ::setenv("SCALETRAIN_GRACE_SECONDS", "30.3", 1);
  CHECK(warned().empty());
  ::setenv("SCALETRAIN_GRACE_SECONDS", "25", 1);
  CHECK(contains(warned(), "given 25 s (SCALETRAIN_GRACE_SECONDS)"));
  for (const char* name : {"SCALETRAIN_GRACE_SECONDS", "SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST"}) ::unsetenv(name);
}

TEST_CASE("a_checkpoint_takes_what_its_ranks_write_together_whatever_the_layout") {
  for (const std::vector<std::string>& layout : {std::vector<std::string>{"parallel.data=1"},
                                                 {"parallel.data=4", "parallel.zero=3", "train.micro_batch=1"},
                                                 {"parallel.tensor=2", "parallel.pipeline=2", "model.layers=2"},
                                                 {"parallel.data=2", "train.optimizer={type: muon}"},
                                                 {"parallel.tensor=2", "train.optimizer={type: adafactor}"}}) {
    CAPTURE(layout);
    TinyRun run;
    const Config config = run.config(layout).config;
    const PhasePlan plan = make_run_plan(config, 257, std::nullopt).phases.front();
    std::uint64_t all = 0;
    for (std::int64_t rank = 0; rank < plan.mesh.world(); ++rank)
      all += saved_bytes(plan.table, plan.layout(Rank(rank)), plan.optimizer_states, plan.masters());
    CHECK(checkpoint_bytes(plan.table, plan.optimizer_states, plan.masters()) == all);
  }
}

TEST_CASE("the_room_that_checkpoints_need_is_told_with_figures") {
  TinyRun run;
  const auto room_of = [&run](const std::vector<std::string>& overrides) {
    const Config config = run.config(overrides).config;
    return checkpoint_room(config, make_run_plan(config, 257, 1).phases.front(), run.paths.checkpoints(), std::nullopt);
  };
  // 12 steps: 5, 10 and 12 are saved.
  CHECK(room_of({"checkpoint.keep=100"}).most == 3);
  CHECK(room_of({"checkpoint.every=1", "checkpoint.keep=3"}).most == 4);
  CHECK(room_of({"checkpoint.every=1", "checkpoint.keep=3", stop_policy}).most == 5);
  CHECK(room_of({"checkpoint.every=1", "checkpoint.keep=3", "checkpoint.keep_every=4"}).most == 7);
  CHECK(room_of({"checkpoint.every=0"}).most == 1);
  CheckpointRoom room = room_of({"checkpoint.every=1", "checkpoint.keep=3"});
  CHECK(available_bytes(run.folder.path()).has_value());
  CHECK(room.fits());
  CHECK(room.shortage().empty());
  room.each = 1u << 30;
  room.present = 2ull << 30;
  room.available = (2ull << 30) - 1;
  CHECK_FALSE(room.fits());
  CHECK_FALSE(room.fits_none());
  CHECK(contains(room.shortage(), "up to 4.00 GiB, 4 of 1.00 GiB each (checkpoint.keep 3, and one that"));
  CHECK(contains(room.shortage(), "2.00 GiB of that is there and the file system has 2.00 GiB left"));
  room.available = 2ull << 30;
  CHECK(room.fits());
  room.available = (1ull << 30) - 1;
  CHECK(room.fits_none());
  room.spare = 1;  // goes when a save finds no space
  CHECK_FALSE(room.fits_none());
  room.available.reset();
  CHECK(room.fits());
  CHECK_FALSE(room.fits_none());
}

TEST_CASE("what_is_there_counts_as_room_and_what_a_full_disk_may_cost_is_known") {
  TinyRun run;
  CHECK(run.run({"checkpoint.every=2", "checkpoint.keep=10"}, 9) == ExitCode::interrupted);
  REQUIRE(run.checkpoint_steps() == Steps{9, 8, 6, 4, 2});
  const Config config = run.config({"checkpoint.keep_every=4"}).config;
  const CheckpointRoom room =
      checkpoint_room(config, make_run_plan(config, 257, 1).phases.front(), run.paths.checkpoints(), 0);
  std::uint64_t bytes = 0;
  for (const CatalogEntry& entry : list_checkpoints(run.paths.checkpoints())) bytes += entry.bytes;
  CHECK(room.present == bytes);
  CHECK(room.each > bytes / 5 - 16384);  // but for the headers
  CHECK(room.each <= bytes / 5);
  CHECK(room.spare == 1);  // of 6 and 2 one may be pinned; 4 and 8 are multiples, 9 and 8 the newest
  CHECK(available_bytes(run.folder / "not" / "there" / "yet") == available_bytes(run.folder.path()));
  CHECK_FALSE(available_bytes("/proc/self").has_value());
}
