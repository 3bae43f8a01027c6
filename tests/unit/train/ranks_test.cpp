// Whole runs by several ranks, each a thread with the assembly that a worker process has.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "checkpoint/box_copy.h"
#include "checkpoint/hugging_face/hugging_face.h"
#include "ranks_run.h"
#include "support/near.h"
#include "train/start/start_up.h"

using namespace scaletrain;

namespace {

const std::vector<std::string> data_by_pipeline = {"parallel.data=2", "parallel.pipeline=2"};

}  // namespace

TEST_CASE("a run of four ranks has the one rank's losses, one set of metrics and a log for each rank") {
  RanksRun single;
  REQUIRE(single.run() == ExitCode::finished);
  RanksRun run;
  REQUIRE(all_are(run.run_ranks(4, data_by_pipeline), ExitCode::finished));
  const Metrics metrics = run.metrics();
  check_same_losses(metrics, single.metrics());
  REQUIRE(metrics.starts.size() == 1);
  CHECK(metrics.starts[0].world == 4);
  CHECK(metrics.starts[0].parameters == single.metrics().starts[0].parameters);
  CHECK(metrics.steps[0].mfu > 0.0);
  REQUIRE(metrics.ends.size() == 1);
  CHECK(metrics.ends[0].reason == "finished");
  REQUIRE(metrics.checkpoints.size() == 3);
  for (const CheckpointRecord& checkpoint : metrics.checkpoints) CHECK(checkpoint.failure.empty());
  CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{12, 10, 5});
  for (const char* name : {"rank-00000.log", "rank-00001.log", "rank-00002.log", "rank-00003.log"})
    CHECK(contains(TempFolder::read(run.paths.logs() / name), "step 12: saved"));
  Checkpoint(run.checkpoint(12)).verify();
  CHECK(contains(Checkpoint(run.checkpoint(12)).manifest().fingerprint, "data 2 x tensor 1 x pipeline 2"));
}

TEST_CASE("mfu is a share of the peak that the config gives, of each rank's device") {
  const auto train = [](const std::string& peak, std::int64_t ranks, const std::vector<std::string>& layout) {
    RanksRun run;
    run.overrides_always.push_back("log.peak_tflops=" + peak);
    if (ranks == 1)
      REQUIRE(run.run() == ExitCode::finished);
    else
      REQUIRE(all_are(run.run_ranks(ranks, layout), ExitCode::finished));
    return run.metrics();
  };
  const Metrics one = train("500", 1, {});
  const Metrics four = train("1000", 4, data_by_pipeline);
  CHECK(one.starts.at(0).device.peak_flops == 500e12);
  CHECK(four.starts.at(0).device.peak_flops == 4000e12);
  // Faster than what is given: it stands all the same, and shows.
  const Metrics slow = train("1e-6", 1, {});
  CHECK(slow.starts.at(0).device.peak_flops == 1e6);
  const auto flops_per_token = [](const StepRecord& step, double peak) {
    return step.mfu * peak / step.tokens_per_second;
  };
  const double expected = flops_per_token(one.steps.at(0), 500e12);
  CHECK(expected > 0.0);
  for (const StepRecord& step : one.steps) CHECK(flops_per_token(step, 500e12) == Near(expected));
  for (const StepRecord& step : slow.steps) {
    CHECK(step.mfu > 1.0);
    CHECK(flops_per_token(step, 1e6) == Near(expected));
  }
  for (const StepRecord& step : four.steps) CHECK(flops_per_token(step, 4000e12) == Near(expected));
}

TEST_CASE("a run resumed on other layouts continues the same losses") {
  RanksRun single;
  REQUIRE(single.run() == ExitCode::finished);
  RanksRun run;
  REQUIRE(all_are(run.run_ranks(4, data_by_pipeline, 0, 4), ExitCode::interrupted));
  REQUIRE(all_are(run.run_ranks(4, {"parallel.data=4", "parallel.zero=3"}, 0, 4), ExitCode::interrupted));
  CHECK(run.run() == ExitCode::finished);
  const Metrics metrics = run.metrics();
  check_same_losses(metrics, single.metrics());
  REQUIRE(metrics.restarts.size() == 2);
  CHECK(metrics.restarts[0].step == 4);
  CHECK(metrics.restarts[1].step == 8);
  for (const RestartRecord& restart : metrics.restarts) CHECK(restart.fingerprint_changed);
}

// Averages and batches are those of the run that was not interrupted, up to rounding.
TEST_CASE("a run that measures the noise and whose batch follows it goes on with both on other layouts") {
  const std::vector<std::string> settings = {"train.global_batch=auto", "train.batch_auto={min: 2, max: 16, every: 1}",
                                             "log.gradient_noise={every: 1, decay: 0.5}", "train.tokens=1280"};
  const auto begin = [&settings](RanksRun& run) {
    run.overrides_always.insert(run.overrides_always.end(), settings.begin(), settings.end());
  };
  RanksRun single;
  begin(single);
  REQUIRE(single.run() == ExitCode::finished);
  RanksRun run;
  begin(run);
  REQUIRE(all_are(run.run_ranks(4, data_by_pipeline, 0, 3), ExitCode::interrupted));
  REQUIRE(all_are(run.run_ranks(4, {"parallel.data=4", "parallel.zero=3"}, 0, 3), ExitCode::interrupted));
  CHECK(run.run() == ExitCode::finished);
  const Metrics metrics = run.metrics();
  const Metrics expected = single.metrics();
  check_same_losses(metrics, expected);
  std::int64_t most = 0;
  for (std::size_t i = 0; i < metrics.steps.size(); ++i) {
    CAPTURE(i);
    CHECK(metrics.steps[i].batch == expected.steps.at(i).batch);
    most = std::max(most, metrics.steps[i].batch.value_or(0));
    REQUIRE(metrics.steps[i].noise.has_value());
    CHECK(metrics.steps[i].noise->variance == Near(expected.steps[i].noise->variance).epsilon(1e-3));
  }
  CHECK(most > 2);
}

TEST_CASE("a folder that gains a file is gone on with alike on every layout") {
  const auto begin = [](RanksRun& run) {
    run.overrides_always.push_back("data.train=[{path: corpus}]");
    run.folder.write("corpus/a.txt", sample_text(600, 11));
    run.folder.write("corpus/c.txt", sample_text(500, 12));
  };
  const auto grow = [](RanksRun& run) { run.folder.write("corpus/b.txt", sample_text(400, 13)); };
  RanksRun single;
  begin(single);
  REQUIRE(single.run({}, 4) == ExitCode::interrupted);
  grow(single);
  REQUIRE(single.run() == ExitCode::finished);
  RanksRun run;
  begin(run);
  REQUIRE(all_are(run.run_ranks(4, data_by_pipeline, 0, 4), ExitCode::interrupted));
  grow(run);
  REQUIRE(all_are(run.run_ranks(4, {"parallel.data=4", "parallel.zero=3"}, 0, 4), ExitCode::interrupted));
  REQUIRE(all_are(run.run_ranks(2, {"parallel.data=2"}), ExitCode::finished));
  check_same_losses(run.metrics(), single.metrics());
}

TEST_CASE("a resume on the same layout gives the same bits as the run that was not interrupted") {
  RanksRun whole;
  REQUIRE(all_are(whole.run_ranks(4, data_by_pipeline), ExitCode::finished));
  RanksRun halves;
  REQUIRE(all_are(halves.run_ranks(4, data_by_pipeline, 1, 7), ExitCode::interrupted));
  REQUIRE(all_are(halves.run_ranks(4, data_by_pipeline), ExitCode::finished));
  check_same_numbers(halves.metrics(), whole.metrics());
  CHECK(tensors_of(halves.checkpoint(12)) == tensors_of(whole.checkpoint(12)));
  CHECK_FALSE(halves.metrics().restarts.at(0).fingerprint_changed);
}

TEST_CASE("any rank's signal ends the run on all ranks after the same step, with a checkpoint") {
  for (const int voter : {0, 3}) {
    RanksRun run;
    CHECK(all_are(run.run_ranks(4, data_by_pipeline, voter, 3), ExitCode::interrupted));
    CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{3});
    CHECK(run.metrics().steps.size() == 3);
    CHECK(run.metrics().ends.empty());  // told by whoever supervises the ranks
  }
}

TEST_CASE("a signal in the middle of the first step ends the run after that very step") {
  for (const int voter : {0, 3}) {
    RanksRun run;
    CHECK(all_are(run.run_ranks(4, data_by_pipeline, voter, 0), ExitCode::interrupted));
    CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{1});
    CHECK(run.metrics().steps.size() == 1);
  }
}

TEST_CASE("a save that fails is no end for any rank, and the next one succeeds") {
  RanksRun run;
  run.overrides_always.push_back("parallel.data=4");
  run.overrides_always.push_back("checkpoint.background=false");  // the way is free before the next save begins
  run.before_start = [&run] {
    std::filesystem::remove_all(run.paths.checkpoints());
    run.folder.write("run/checkpoints", "in the way");
  };
  std::atomic<bool> waited{false};
  run.hooks.entered = [&](std::int64_t step, bool waiting) {
    if (step == 6) std::filesystem::remove(run.paths.checkpoints());
    if (step == 10 && waiting) waited = true;
  };
  CHECK(all_are(run.run_ranks(4, {}), ExitCode::finished));
  const Metrics metrics = run.metrics();
  REQUIRE(metrics.checkpoints.size() == 3);
  CHECK(contains(metrics.checkpoints[0].failure, "rank 0"));
  CHECK(metrics.checkpoints[1].failure.empty());
  CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{12, 10});
  CHECK(contains(TempFolder::read(run.paths.logs() / "rank-00003.log"), "step 5: the checkpoint was not saved"));
  CHECK(waited);
}

TEST_CASE("training that diverges ends all ranks with the same words after the same step") {
  RanksRun run;
  run.overrides_always = {"train.micro_batch=1",
                          "train.optimizer.learning_rate=1e6",
                          "train.optimizer.weight_decay=1000",
                          "train.lr_schedule={type: constant, warmup: 0}",
                          "train.nonfinite.skip=2",
                          "checkpoint.every=1",
                          "checkpoint.keep=10",
                          "evaluate.every=0",
                          "parallel.data=2",
                          "parallel.tensor=2"};
  CHECK(contains(message_of<DivergedError>([&] { run.run_ranks(4, {}); }), "train.nonfinite.skip"));
  const Metrics metrics = run.metrics();
  REQUIRE(metrics.skips.size() == 3);
  const std::int64_t first = metrics.skips[0].step;
  REQUIRE(first > 1);
  // No rank has taken a step that another one skipped: the weights stand still. A run that leaves in between saves
  // them.
  REQUIRE(all_are(run.run_ranks(4, {}, 2, 2), ExitCode::interrupted));
  CHECK(tensors_of(run.checkpoint(first - 1)) == tensors_of(run.checkpoint(first + 1)));
  for (const char* name : {"rank-00000.log", "rank-00001.log", "rank-00002.log", "rank-00003.log"})
    CHECK(contains(TempFolder::read(run.paths.logs() / name),
                   "step " + std::to_string(first + 2) + " was skipped, the weights are untouched"));
}

TEST_CASE("a checkpoint that is due by time is saved by all ranks when rank 0 says so") {
  RanksRun run;
  run.overrides_always.push_back("checkpoint.every=1s");
  // Rank 0 alone is slow at the ends of its fourth and fifth step: the other ranks' clocks say nothing.
  std::int64_t last_slow = 0;
  run.rank_entered = [&](Rank rank, std::int64_t step, bool waiting) {
    if (rank != Rank(0) || waiting || (step != 4 && step != 5) || step == last_slow) return;
    last_slow = step;
    std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  };
  CHECK(all_are(run.run_ranks(2, {"parallel.data=2"}), ExitCode::finished));
  const std::vector<std::int64_t> steps = run.checkpoint_steps();
  REQUIRE(steps.size() >= 2);
  CHECK(steps.front() == 12);
  // Step 6's, where all was so slow that one was due at step 4 already, whose save came behind the first pause.
  CHECK(std::count(steps.begin(), steps.end(), 5) + std::count(steps.begin(), steps.end(), 6) >= 1);
}

TEST_CASE("a start from a Hugging Face folder fills every rank's part with the folder's weights") {
  const std::vector<std::string> model = {"model.activation=gelu_tanh", "evaluate.every=0", "checkpoint.every=0"};
  RanksRun before;
  before.overrides_always.insert(before.overrides_always.end(), model.begin(), model.end());
  REQUIRE(before.run() == ExitCode::finished);
  const Config config = before.config({}).config;
  const RunPlan plan = plan_for(config, 1);
  const Checkpoint checkpoint(before.checkpoint(12));
  HuggingFaceExport request{.folder = before.folder / "exported", .model = config.model, .tokenizer_files = {}};
  request.model.vocab = plan.phases[0].model.vocab;
  export_hugging_face(
      plan.phases[0].table,
      [&](const Parameter& parameter, View out) { checkpoint.read(parameter.name, whole_box(parameter.shape), out); },
      request);

  const auto from_folder = [&](RanksRun& run) {
    run.overrides_always = before.overrides_always;
    run.overrides_always.push_back("model.init={from: " + request.folder.string() + "}");
  };
  RanksRun single;
  from_folder(single);
  REQUIRE(single.run() == ExitCode::finished);
  RanksRun run;
  from_folder(run);
  REQUIRE(all_are(run.run_ranks(8, {"parallel.data=2", "parallel.tensor=2", "parallel.pipeline=2", "parallel.zero=3"}),
                  ExitCode::finished));
  check_same_losses(run.metrics(), single.metrics());
  // It went on from there, and not from random weights.
  CHECK(run.metrics().steps[0].loss < before.metrics().steps[3].loss);
}

TEST_CASE("every rank stops early at the same step") {
  RanksRun run;
  const std::vector<std::string> overrides = {"parallel.data=2", "parallel.pipeline=2", "evaluate.every=2",
                                              "early_stop={metric: validation/a/loss, patience: 5, target: 100.0}"};
  CHECK(all_are(run.run_ranks(4, overrides), ExitCode::finished));
  CHECK(run.metrics().ends.at(0).reason == "stopped early");
  CHECK(run.metrics().ends.at(0).step == 2);
}

TEST_CASE("a layout that does not fit the ranks that were started is refused on every rank") {
  RanksRun run;
  CHECK(contains(message_of<UserError>([&] { run.run_ranks(3, data_by_pipeline); }), "parallel"));
  CHECK_FALSE(std::filesystem::exists(run.paths.metrics()));
}

TEST_CASE("start_up_lets_the_first_rank_of_the_host_open_the_data_before_the_others") {
  InProcessWorld world(4);
  std::mutex mutex;
  std::vector<std::int64_t> order;
  std::atomic<int> arrived{0};
  std::vector<int> seen(4);
  std::vector<std::string> words(4);
  run_threads(world, [&](Rank rank) {
    const auto store = world.make_store();
    StartUp start_up({.rank = rank, .world = 4, .local_rank = rank.value(), .rendezvous = store.get()}, 3);
    start_up.first_on_host([&](const std::string& found_by_first) {
      const std::lock_guard lock(mutex);
      order.push_back(rank.value());
      words[static_cast<std::size_t>(rank.value())] = found_by_first;
      return "found by rank " + std::to_string(rank.value());
    });
    ++arrived;
    start_up.wait_for_all();
    seen[static_cast<std::size_t>(rank.value())] = arrived;
  });
  REQUIRE(order.size() == 4);
  CHECK(order[0] == 0);
  const std::string word = "found by rank 0";
  CHECK(words == std::vector<std::string>{"", word, word, word});
  CHECK(seen == std::vector<int>(4, 4));
}

TEST_CASE("start_up_that_fails_on_one_rank_ends_the_waits_of_all_others") {
  for (const std::int64_t bad : {0, 2}) {
    InProcessWorld world(3);
    std::vector<std::string> messages(3);
    run_threads(world, [&](Rank rank) {
      const auto store = world.make_store();
      StartUp start_up({.rank = rank, .world = 3, .local_rank = rank.value(), .rendezvous = store.get()}, 0);
      try {
        start_up.first_on_host([&](const std::string&) {
          if (rank == Rank(bad)) throw InputError("the corpus is damaged");
          return std::string();
        });
        start_up.wait_for_all();
      } catch (const InputError& error) {
        start_up.failed(error.what());
      } catch (const PeerError& error) {
        messages[static_cast<std::size_t>(rank.value())] = error.what();
      }
    });
    for (std::size_t rank = 0; rank < 3; ++rank) {
      if (static_cast<std::int64_t>(rank) == bad) continue;
      CHECK(contains(messages[rank], "rank " + std::to_string(bad) + ": the corpus is damaged"));
    }
  }
}

TEST_CASE("ranks that the data does not suffice for end together, and what they trained is saved") {
  RanksRun run;
  run.looked_up_samples = 0;
  const auto settings = [](int seed) {
    return std::vector<std::string>{"data.train=[{path: b.txt, epochs: 1}]", "train.tokens=128",
                                    "train.lr_schedule.warmup=1", "parallel.data=2",
                                    "run.seed=" + std::to_string(seed)};
  };
  // 10 samples of 16, one padded: where it is among the 8 of two steps they are short of tokens.
  std::string end;
  for (int seed = 1; seed < 20 && end.empty(); ++seed) {
    std::filesystem::remove_all(run.paths.folder);
    end = message_of<UserError>([&] { run.run_ranks(2, settings(seed)); });
  }
  CHECK(contains(end, "The run ends with step 2, which is saved in "));
  CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{2});
}
