// Checkpoints that are written while training goes on: what they hold, what training waits for, and how they end.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "checkpoint/save/staging.h"
#include "nn/init.h"
#include "support/ranks/fenced_backend.h"
#include "support/ranks/host_stream.h"
#include "support/ranks/late_backend.h"
#include "support/sanitizers.h"
#include "train/saving/checkpointer.h"
#include "unit/train/ranks_run.h"

using namespace scaletrain;

namespace {

const std::string in_background = "checkpoint.background=true";
const std::string in_foreground = "checkpoint.background=false";

// The parts of rank 0's training thread, without training.
struct StateOfSize {
  explicit StateOfSize(std::int64_t hidden, std::int64_t ranks = 1, OffloadKind offload = OffloadKind::none)
      : config(config_of(hidden, ranks)) {
    if (offload == OffloadKind::host) {
      config.run.device = DeviceKind::cuda;
      config.train.optimizer.offload = offload;
      backend = std::make_unique<FencedBackend>(std::move(backend));
      stream = backend->make_stream();
    }
    plan = make_run_plan(config, *config.model.vocab, ranks).phases.front();
    layout.emplace(plan.layout(Rank(0)));
    store.emplace(*backend, plan.table, *layout, plan.store_options(DType::f32));
    initialise_parameters(*store, host_stream(), 1, 1);
    paths.emplace(folder.path());
    std::filesystem::create_directories(folder / "logs");
    log.emplace(LogOptions{});
    folder.write("metrics.jsonl", "");
  }

  static Config config_of(std::int64_t hidden, std::int64_t ranks) {
    Config config;
    config.model.layers = 1;
    config.model.hidden = hidden;
    config.model.heads = 1;
    config.model.kv_heads = 1;
    config.model.ffn_hidden = hidden;
    config.model.context = 8;
    config.model.vocab = 100;
    config.train.steps = 10;
    config.train.global_batch = ranks;
    config.parallel.data = ranks;
    config.parallel.zero = 0;
    config.train.micro_batch = 1;
    config.checkpoint.background = true;
    config.checkpoint.keep = 100;
    return config;
  }

  Checkpointer::Parts parts() {
    return {.config = config,
            .plan = plan,
            .stream = *stream,
            .store = *store,
            .rank = Rank(0),
            .paths = *paths,
            .log = *log,
            .tokenizer_files = {},
            .fingerprint = "",
            .may_commit = {},
            .entered = {}};
  }

  // What an optimizer does: everything changes.
  void overwrite(float value) {
    const auto fill = [&](StateKind kind, std::size_t state) {
      for (const ParamRange& range : store->held(kind))
        std::fill_n(store->values(kind, range, state).as<float>(), range.count, value);
    };
    fill(StateKind::master, 0);
    for (std::size_t state = 0; state < plan.optimizer_states.size(); ++state) fill(StateKind::optimizer, state);
  }

  TempFolder folder;
  Config config;
  PhasePlan plan;
  std::unique_ptr<Backend> backend = make_reference_backend(DType::f32);
  std::unique_ptr<Stream> stream = backend->make_stream();
  std::optional<ShardLayout> layout;
  std::optional<ParamStore> store;
  std::optional<RunPaths> paths;
  std::optional<Log> log;
};

struct LayoutCase {
  int world;
  std::vector<std::string> overrides;
};

const std::vector<LayoutCase>& layout_cases() {
  static const std::vector<LayoutCase> all = {
      {1, {}},
      {2, {"parallel.data=2", "parallel.zero=0"}},
      {2, {"parallel.data=2", "parallel.zero=1"}},
      {2, {"parallel.data=2", "parallel.zero=2"}},
      {2, {"parallel.data=2", "parallel.zero=3"}},
      {4, {"parallel.tensor=2", "parallel.pipeline=2"}},
      {4, {"parallel.data=2", "parallel.pipeline=2", "parallel.zero=1"}},
      {4, {"parallel.data=2", "parallel.tensor=2", "parallel.zero=3"}},
  };
  return all;
}

std::string log_of(const TinyRun& run) {
  return TempFolder::read(run.paths.folder / "logs" / "rank-00000.log");
}

}  // namespace

TEST_CASE("a_checkpoint_of_the_background_holds_what_one_that_training_waited_for_holds") {
  for (const LayoutCase& layout : layout_cases()) {
    // Under a sanitizer one rank and the last layout.
    if (is_sanitized && layout.world > 1 && &layout != &layout_cases().back()) continue;
    CAPTURE(layout.overrides);
    RanksRun runs[2];
    for (RanksRun& run : runs) {
      std::vector<std::string> overrides = layout.overrides;
      overrides.insert(overrides.end(), {"train.steps=4", "train.lr_schedule.warmup=1", "checkpoint.every=1",
                                         "checkpoint.keep=100", &run == &runs[0] ? in_foreground : in_background});
      if (layout.world == 1) {
        REQUIRE(run.run(overrides) == ExitCode::finished);
      } else {
        REQUIRE(all_are(run.run_ranks(layout.world, overrides), ExitCode::finished));
      }
    }
    check_same_numbers(runs[0].metrics(), runs[1].metrics());
    REQUIRE(runs[1].checkpoint_steps() == std::vector<std::int64_t>{4, 3, 2, 1});
    std::string parent;
    for (const std::int64_t step : {1, 2, 3, 4}) {
      CAPTURE(step);
      const Checkpoint expected(runs[0].checkpoint(step));
      const Checkpoint found(runs[1].checkpoint(step));
      found.verify();
      CHECK(tensors_of(expected.path()) == tensors_of(found.path()));
      CHECK(expected.manifest().history == found.manifest().history);
      CHECK(expected.manifest().scalars == found.manifest().scalars);
      CHECK(expected.manifest().tokens == found.manifest().tokens);
      CHECK(found.manifest().parent_save_id == parent);
      parent = found.manifest().save_id;
    }
  }
}

// 60 MB, so that an optimizer that did not wait would change most of it before it was copied.
TEST_CASE("what_the_optimizer_does_after_before_update_is_not_in_the_checkpoint") {
  // With offload the state is in the host's memory though the device has its own.
  for (const OffloadKind offload : {OffloadKind::none, OffloadKind::host}) {
    StateOfSize run(1024, 1, offload);
    RunState state;
    Checkpointer checkpoints(run.parts(), state);
    for (std::int64_t step = 1; step <= 3; ++step) {
      run.overwrite(static_cast<float>(step));
      state.step = step;
      checkpoints.save({});
      checkpoints.before_update();
      run.overwrite(-1.0f);
    }
    checkpoints.settle();
    CHECK(checkpoints.saved_step() == 3);
    for (const CatalogEntry& entry : list_checkpoints(run.paths->checkpoints())) {
      std::size_t wrong = 0;
      for (const float value : tensors_of(entry.path)) wrong += value == static_cast<float>(entry.step) ? 0 : 1;
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("a_checkpoint_holds_the_update_that_the_stream_had_still_to_make_when_its_save_began") {
  StateOfSize run(64);
  run.stream = LateBackend(make_reference_backend(DType::f32)).make_stream();
  RunState state;
  Checkpointer checkpoints(run.parts(), state);
  for (std::int64_t step = 1; step <= 3; ++step) {
    run.stream->call([&run, step] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      run.overwrite(static_cast<float>(step));
    });
    state.step = step;
    checkpoints.save({});
    checkpoints.before_update();
  }
  checkpoints.settle();
  for (const CatalogEntry& entry : list_checkpoints(run.paths->checkpoints())) {
    const std::vector<float> values = tensors_of(entry.path);
    CHECK(std::count(values.begin(), values.end(), static_cast<float>(entry.step)) == std::ssize(values));
  }
  CHECK(checkpoints.saved_step() == 3);
}

TEST_CASE("the_hook_before_the_update_sees_the_old_weights") {
  RanksRun run;
  // Steps that save and steps that do not: the last state is the same as without any save.
  REQUIRE(run.run({in_background, "checkpoint.every=3"}) == ExitCode::finished);
  RanksRun without;
  REQUIRE(without.run({in_background, "checkpoint.every=0"}) == ExitCode::finished);
  check_same_numbers(run.metrics(), without.metrics());
  CHECK(tensors_of(run.checkpoint(12)) == tensors_of(without.checkpoint(12)));
}

TEST_CASE("the_record_of_a_save_says_whether_and_how_long_training_was_held_up") {
  TinyRun run;
  REQUIRE(run.run({in_background}) == ExitCode::finished);
  std::vector<CheckpointRecord> records = run.metrics().checkpoints;
  REQUIRE(records.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CAPTURE(i);
    CHECK(records[i].step == std::vector<std::int64_t>{5, 10, 12}[i]);
    CHECK(records[i].background == (i < 2));  // the last one is the run's end
    CHECK(records[i].seconds > 0.0);
    CHECK(records[i].stall_seconds > 0.0);
    CHECK(records[i].waited_seconds <= records[i].stall_seconds);
  }
  CHECK(records[2].stall_seconds >= records[2].seconds);
}

TEST_CASE("a_save_that_is_due_while_the_one_before_is_written_holds_training_up_and_says_so") {
  TinyRun run;
  // The first save ends more than a second, which nobody would be told of, after training has begun to wait for it.
  std::atomic<bool> waits_for_save{false};
  std::atomic<bool> is_first{true};
  run.hooks.may_commit = [&] {
    if (!is_first.exchange(false)) return true;
    for (int i = 0; i < 6000 && !waits_for_save; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    return true;
  };
  std::vector<std::int64_t> waiting;
  run.hooks.entered = [&](std::int64_t step, bool waits) {
    if (!waits) return;
    waiting.push_back(step);
    waits_for_save = true;
  };
  REQUIRE(run.run({in_background, "checkpoint.every=2", "train.steps=6"}) == ExitCode::finished);
  const std::vector<CheckpointRecord> records = run.metrics().checkpoints;
  REQUIRE(records.size() == 3);
  CHECK(records[0].waited_seconds == 0.0);
  CHECK(records[1].waited_seconds >= 1.2);
  CHECK(records[1].stall_seconds >= records[1].waited_seconds);
  CHECK(contains(log_of(run), "step 4: training waited"));
  CHECK(contains(log_of(run), "checkpoint.every"));
  REQUIRE(!waiting.empty());
  CHECK(waiting[0] == 4);
  CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{6, 4, 2});
}

TEST_CASE("an_interruption_waits_for_the_save_under_way_and_saves_only_what_is_newer") {
  for (const int every : {1, 2}) {
    CAPTURE(every);
    TinyRun run;
    run.hooks.may_commit = [] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      return true;
    };
    REQUIRE(run.run({in_background, "checkpoint.every=" + std::to_string(every)}, 3) == ExitCode::interrupted);
    std::vector<std::int64_t> recorded;
    for (const CheckpointRecord& record : run.metrics().checkpoints) recorded.push_back(record.step);
    if (every == 1) {
      CHECK(recorded == std::vector<std::int64_t>{1, 2, 3});  // none twice
    } else {
      CHECK(recorded == std::vector<std::int64_t>{2, 3});
      CHECK_FALSE(run.metrics().checkpoints.back().background);
    }
    CHECK(run.checkpoint_steps().front() == 3);
    REQUIRE(run.run({in_background}) == ExitCode::finished);
    TinyRun whole;
    REQUIRE(whole.run() == ExitCode::finished);
    check_same_numbers(run.metrics(), whole.metrics());
  }
}

TEST_CASE("a_save_in_the_background_that_fails_is_recorded_and_the_next_one_succeeds") {
  TinyRun run;
  int saves = 0;
  run.hooks.may_commit = [&saves] { return ++saves != 2; };
  REQUIRE(run.run({in_background, "checkpoint.every=3"}) == ExitCode::finished);
  const std::vector<CheckpointRecord> records = run.metrics().checkpoints;
  REQUIRE(records.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) CHECK(records[i].failure.empty() == (i != 1));
  CHECK(records[1].step == 6);
  CHECK(records[1].background);
  CHECK(contains(log_of(run), "step 6: the checkpoint was not saved, training goes on"));
  CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{12, 9, 3});
  for (const auto& entry : std::filesystem::directory_iterator(run.paths.checkpoints()))
    CHECK(entry.path().filename().string().front() != '.');
}

TEST_CASE("every_rank_goes_on_after_a_save_in_the_background_that_failed") {
  RanksRun run;
  std::atomic<int> saves{0};
  run.hooks.may_commit = [&saves] { return ++saves != 2; };
  REQUIRE(all_are(run.run_ranks(2, {"parallel.data=2", in_background, "checkpoint.every=3"}), ExitCode::finished));
  CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{12, 9, 3});
}

// Whoever else is alive and waits is told by the deadline of a step; rank 0 of a save would wait ten minutes for the
// report of a rank that never began it.
TEST_CASE("a_run_that_ends_by_an_exception_does_not_wait_for_the_other_ranks_reports") {
  StateOfSize run(16, 2);
  InProcessWorld world(2);
  const auto rendezvous = world.make_store();
  RunState state;
  state.step = 1;
  const auto fail_beside_a_save = [&] {
    Checkpointer::Parts parts = run.parts();
    parts.rendezvous = rendezvous.get();
    Checkpointer checkpoints(parts, state);
    checkpoints.save({});
    throw InputError("no more data");
  };
  CHECK(contains(message_of<InputError>(fail_beside_a_save), "no more data"));
  CHECK(list_checkpoints(run.paths->checkpoints()).empty());
  CHECK(std::filesystem::is_empty(run.paths->checkpoints()));  // no leftovers
}

TEST_CASE("a_rank_that_fails_gives_up_the_save_under_way_and_so_do_the_others") {
  RanksRun run;
  run.hooks.may_commit = [] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return true;
  };
  run.rank_entered = [](Rank rank, std::int64_t step, bool waiting) {
    if (rank == Rank(1) && step == 4 && !waiting) throw InputError("this rank has had enough");
  };
  CHECK_THROWS(run.run_ranks(2, {"parallel.data=2", in_background, "checkpoint.every=1"}));
  run.rank_entered = nullptr;
  REQUIRE(all_are(run.run_ranks(2, {"parallel.data=2", in_background, "checkpoint.every=1"}), ExitCode::finished));
  RanksRun whole;
  REQUIRE(all_are(whole.run_ranks(2, {"parallel.data=2"}), ExitCode::finished));
  check_same_numbers(run.metrics(), whole.metrics());
}

// Whoever supervises a rank takes one that works without progress for hung, and ends one that has told of a failure.
TEST_CASE("a_single_rank_that_fails_beside_a_save_waits_for_it_as_for_storage_and_tells_of_the_failure_then") {
  TinyRun run;
  std::atomic<bool> is_committing{false};
  std::atomic<bool> waits{false};
  std::atomic<bool> was_waiting{false};
  run.hooks.may_commit = [&] {
    is_committing = true;
    for (int i = 0; i < 2000 && !waits; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    was_waiting = waits.load();
    return true;
  };
  run.hooks.entered = [&](std::int64_t step, bool waiting) {
    waits = waiting;
    if (step != 3 || waiting) return;
    for (int i = 0; i < 2000 && !is_committing; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    throw InputError("train.bin: offset 77: no more data");
  };
  std::vector<std::string> told;
  bool was_saved = false;
  run.failed = [&](const std::exception_ptr& error) {
    told.push_back(message_of<InputError>([&] { std::rethrow_exception(error); }));
    was_saved = waits && run.checkpoint_steps() == std::vector<std::int64_t>{2};
  };
  CHECK(contains(message_of<InputError>([&] { run.run({in_background, "checkpoint.every=2"}); }), "offset 77"));
  CHECK(was_waiting);
  CHECK(was_saved);
  CHECK(told == std::vector<std::string>{"train.bin: offset 77: no more data"});
  CHECK(contains(log_of(run), "offset 77"));
  const std::vector<CheckpointRecord> records = run.metrics().checkpoints;
  REQUIRE(records.size() == 1);
  CHECK(records[0].failure.empty());
}

TEST_CASE("one_of_several_ranks_that_fails_beside_a_save_tells_of_it_before_it_waits_for_the_save") {
  RanksRun run;
  std::atomic<bool> is_committing{false};
  std::atomic<bool> has_told{false};
  std::atomic<bool> waits{false};
  std::atomic<bool> was_told_first{false};
  run.hooks.may_commit = [&] {
    is_committing = true;
    for (int i = 0; i < 2000 && !(has_told && waits); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    was_told_first = has_told && waits;
    return true;
  };
  run.rank_entered = [&](Rank rank, std::int64_t step, bool waiting) {
    if (rank != Rank(0)) return;
    waits = waiting;
    if (step != 3 || waiting) return;
    for (int i = 0; i < 2000 && !is_committing; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    throw InputError("this rank has had enough");
  };
  std::atomic<int> tellings{0};
  run.rank_failed = [&](Rank rank) {
    if (rank != Rank(0)) return;
    has_told = true;
    ++tellings;
  };
  CHECK_THROWS(run.run_ranks(2, {"parallel.data=2", in_background, "checkpoint.every=2"}));
  CHECK(was_told_first);
  CHECK(tellings == 1);
}

TEST_CASE("newest_multiples_and_the_best_are_kept_by_saves_in_the_background_too") {
  for (const std::string& how : {in_foreground, in_background}) {
    if (is_sanitized && how == in_foreground) continue;
    CAPTURE(how);
    TinyRun run;
    REQUIRE(run.run({how, "checkpoint.every=1", "checkpoint.keep=2", "checkpoint.keep_every=4"}) == ExitCode::finished);
    CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{12, 11, 8, 4});
    TinyRun best;
    REQUIRE(best.run({how, "checkpoint.every=1", "checkpoint.keep=2", "train.optimizer.learning_rate=0.1",
                      "early_stop={metric: validation/a/loss, patience: 100}"}) == ExitCode::finished);
    const Metrics metrics = best.metrics();
    double lowest = 1e9;
    std::int64_t step = 0;
    for (const EvaluationRecord& evaluation : metrics.evaluations) {
      if (evaluation.dataset != "a" || evaluation.loss >= lowest) continue;
      lowest = evaluation.loss;
      step = evaluation.step;
    }
    const std::vector<std::int64_t> kept = best.checkpoint_steps();
    CHECK(std::find(kept.begin(), kept.end(), step) != kept.end());
  }
}

TEST_CASE("the_best_checkpoint_stays_pinned_when_saves_in_the_background_have_pruned_all_others_of_its_age") {
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    RanksRun run;
    // Overfits: the loss on set a rises after the first evaluation.
    run.folder.write("train.txt", std::string(2000, 'x'));
    run.folder.write("a.txt", std::string(200, 'q'));
    run.overrides_always = {in_background,
                            "evaluate.every=2",
                            "checkpoint.every=3",
                            "checkpoint.keep=2",
                            "train.steps=14",
                            "train.optimizer.learning_rate=3e-2",
                            "early_stop={metric: validation/a/loss, patience: 100}"};
    if (ranks == 1) {
      REQUIRE(run.run() == ExitCode::finished);
    } else {
      REQUIRE(all_are(run.run_ranks(ranks, {"parallel.data=2"}), ExitCode::finished));
    }
    CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{14, 12, 2});
    const std::string best = Checkpoint(run.checkpoint(2)).manifest().save_id;
    for (const std::int64_t step : {2, 12, 14}) {
      const Manifest manifest = Checkpoint(run.checkpoint(step)).manifest();
      CHECK(manifest.scalars.at("best_save_id") == (step == 2 ? "this" : best));
    }
    const Metrics metrics = run.metrics();
    CHECK(metrics.checkpoints.at(0).step == 2);
    CHECK(metrics.checkpoints.at(0).background);
  }
}

TEST_CASE("staging_memory_is_what_the_plan_says_and_none_without_saves_in_the_background") {
  for (const LayoutCase& layout : layout_cases()) {
    CAPTURE(layout.overrides);
    RanksRun run;
    std::vector<std::string> overrides = layout.overrides;
    overrides.push_back(in_background);
    const Config config = run.config(overrides).config;
    PhasePlan plan = make_run_plan(config, 257, layout.world).phases.front();
    std::uint64_t all = 0;
    for (std::int64_t rank = 0; rank < layout.world; ++rank) {
      const ShardLayout shard = plan.layout(Rank(rank));
      const auto backend = make_reference_backend(DType::f32);
      const ParamStore store(*backend, plan.table, shard, plan.store_options(DType::f32));
      WorkCount work{0};
      StateStaging staging(store, &work);
      CHECK(staging.bytes() == plan.checkpoint_staging(Rank(rank)));
      // Training may have to wait for both, and is seen to get further meanwhile.
      staging.prefault();
      // A rank whose parameters others save holds none of it.
      CHECK((work > 0) == (staging.bytes() > 0));
      work = 0;
      staging.copy();
      CHECK(work >= plan.save_plan(Rank(rank)).size());
      all += staging.bytes();
    }
    // Masters and two moments of each parameter once.
    CHECK(all == static_cast<std::uint64_t>(plan.table.num_parameters()) * 3 * 4);
    const std::size_t with = plan.memory(Rank(0), 0).total();
    const std::size_t staging = plan.checkpoint_staging(Rank(0));
    plan.background_saves = false;
    CHECK(plan.checkpoint_staging(Rank(0)) == 0);
    CHECK(plan.memory(Rank(0), 0).total() + staging == with);
  }
}

TEST_CASE("a_grace_time_shorter_than_a_save_is_warned_about_once_with_the_remedy") {
  const auto with_grace = [](const char* seconds) {
    ::setenv("SCALETRAIN_GRACE_SECONDS", seconds, 1);
    TinyRun run;
    CHECK(run.run({in_background}) == ExitCode::finished);
    ::unsetenv("SCALETRAIN_GRACE_SECONDS");
    return log_of(run);
  };
  const std::string warned = with_grace("1e-6");
  CHECK(contains(warned, "SCALETRAIN_GRACE_SECONDS"));
  CHECK(contains(warned, "--signal"));
  CHECK(warned.find("--signal") == warned.rfind("--signal"));
  CHECK_FALSE(contains(with_grace("3600"), "--signal"));
  ::setenv("SCALETRAIN_GRACE_SECONDS", "soon", 1);
  CHECK_THROWS_AS(grace_seconds(), UserError);
  ::unsetenv("SCALETRAIN_GRACE_SECONDS");
  ::unsetenv("SLURM_JOB_ID");
  CHECK_FALSE(grace_seconds().has_value());
  ::setenv("SLURM_JOB_ID", "1", 1);
  CHECK(grace_seconds() == 30.0);
  ::unsetenv("SLURM_JOB_ID");
}
