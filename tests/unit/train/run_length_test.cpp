// What was consumed counts, whatever the batches were that it was consumed in.
#include "train/run_length.h"

#include <cmath>
#include <numbers>

#include "support/near.h"
#include "train_helpers.h"

namespace scaletrain {
namespace {

std::vector<double> learning_rates(const Metrics& metrics) {
  std::vector<double> rates;
  for (const StepRecord& step : metrics.steps) rates.push_back(step.learning_rate);
  return rates;
}

TEST_CASE("a token budget is trained to its end when the batch changes at a resume") {
  TinyRun whole;
  whole.run({"train.tokens=768"});  // 12 steps of 4 samples of 16 tokens
  const std::vector<double> rates = learning_rates(whole.metrics());
  REQUIRE(rates.size() == 12);
  for (const std::int64_t batch : {8, 2}) {
    CAPTURE(batch);
    TinyRun run;
    run.run({"train.tokens=768"}, 6);
    const std::vector<std::string> changed = {"train.tokens=768", "train.global_batch=" + std::to_string(batch)};
    const LoadedConfig loaded = run.config(changed);
    const StartPoint start = run.prepare(loaded);
    REQUIRE_FALSE(already_complete(start, loaded.config).has_value());
    CHECK(run.train(start) == ExitCode::finished);
    const Metrics metrics = run.metrics();
    CHECK(metrics.steps.back().tokens == 768);
    REQUIRE(metrics.steps.size() == static_cast<std::size_t>(6 + 24 / batch));
    // The learning rate is where the same number of samples has it.
    for (const StepRecord& step : metrics.steps) {
      const std::int64_t samples = step.tokens / 16;
      if (samples % 4 == 0) CHECK(step.learning_rate == rates[static_cast<std::size_t>(samples / 4 - 1)]);
    }
    CHECK(already_complete(run.prepare(loaded), loaded.config).has_value());
  }
}

TEST_CASE("a warm-up is held against the length of the run that is resumed, not of one that begins") {
  TinyRun run;
  const std::string half = "train.tokens=768";  // 6 of 12 steps of 4 samples of 16 tokens
  run.run({half}, 6);
  // 3 more steps of 8 samples; a run that began with them would have 6.
  const std::string larger = "train.global_batch=8";
  const std::string refusal = message_of<UserError>([&] {
    run.prepare(run.config({half, larger, "train.lr_schedule.warmup=10"}));
  });
  CHECK(refusal ==
        "train.lr_schedule.warmup: warm-up of 10 steps exceeds the run's 9 steps; lower it, leave it out (auto) or "
        "raise train.tokens");
  CHECK(run.run({half, larger, "train.lr_schedule.warmup=9"}) == ExitCode::finished);
  CHECK(run.metrics().steps.size() == 9);
  // 6 more steps of 4 samples after 3 of 8; one that began with them would have 12.
  TinyRun smaller;
  smaller.run({half, larger}, 3);
  CHECK(contains(message_of<UserError>([&] {
                   smaller.prepare(smaller.config({half, "train.lr_schedule.warmup=10"}));
                 }),
                 "exceeds the run's 9 steps"));
  TinyRun fresh;
  CHECK(contains(message_of<UserError>([&] {
                   fresh.prepare(fresh.config({half, "train.lr_schedule.warmup=13"}));
                 }),
                 "warm-up of 13 steps exceeds the run's 12 steps"));
  CHECK_FALSE(std::filesystem::exists(fresh.paths.config()));
}

TEST_CASE("a complete run says which key makes it longer, and following that works") {
  TinyRun run;
  run.run({"train.tokens=256"});
  const LoadedConfig same = run.config({"train.tokens=256"});
  const auto complete = already_complete(run.prepare(same), same.config);
  REQUIRE(complete.has_value());
  CHECK(contains(*complete, "step 4, and 256 of 256 tokens are trained on; raise train.tokens to go on"));
  CHECK(run.run({"train.tokens=384"}) == ExitCode::finished);
  CHECK(run.metrics().steps.size() == 6);
  CHECK(run.run({"train.steps=7"}) == ExitCode::finished);
  CHECK(run.metrics().steps.size() == 7);
}

TEST_CASE("a run in tokens has the learning rates of the run in as many steps, to the bit") {
  TinyRun steps;
  steps.run();
  TinyRun tokens;
  tokens.run({"train.tokens=768"});
  check_same_numbers(steps.metrics(), tokens.metrics());
}

TEST_CASE("an explicit warm-up that is over does not come back with a larger batch") {
  Config config;
  config.train.steps.reset();
  config.train.tokens = 1000 * 8 * 16;
  config.train.global_batch = 8;
  config.model.context = 16;
  config.train.lr_schedule.warmup = 100;
  RunState state;
  state.warmup = 100;
  state.history.continue_with({.hash = 1, .sources = {}}, 16, 8);
  for (; state.step < 120; ++state.step) state.history.consume_batch(8 * 16);
  // A cosine over the 900 steps behind the warm-up, down to a tenth. The next step is the 121st.
  const auto expected = [&config](double behind_warmup) {
    return config.train.optimizer.learning_rate *
           (0.1 + 0.9 * (1 + std::cos(std::numbers::pi * behind_warmup / 900)) / 2);
  };
  CHECK(next_learning_rate(config, state) == Near(expected(21)).epsilon(1e-12));
  config.train.global_batch = 32;
  CHECK(last_step(config, state) == 120 + 220);
  // It takes the samples of the 121st to the 124th.
  CHECK(next_learning_rate(config, state) == Near(expected(24)).epsilon(1e-12));
}

TEST_CASE("a token budget that the epoch caps give only with the padding is refused before the first step") {
  // 150 targets in 10 samples of 16, the last of them padded.
  const std::string capped = "data.train=[{path: b.txt, epochs: 1}]";
  TinyRun run;
  const std::string refusal = message_of<UserError>([&] {
    run.run({capped, "train.global_batch=2", "train.tokens=160"});
  });
  CHECK(refusal ==
        "data.train: 160 of train.tokens 160 are still to be trained on and the epoch caps leave 150 in whole steps of "
        "2 samples, without padding (data.train.0: 150); raise data.train[].epochs or reduce train.tokens to at most "
        "150");
  CHECK(run.checkpoint_steps().empty());
  CHECK(run.metrics().steps.empty());
  // As it says; and from the middle of it too, where only the rest counts.
  CHECK(run.run({capped, "train.global_batch=2", "train.tokens=150"}, 3) == ExitCode::interrupted);
  const std::int64_t done = run.metrics().steps.back().tokens;
  CHECK(contains(message_of<UserError>([&] {
                   run.run({capped, "train.global_batch=2", "train.tokens=151"});
                 }),
                 std::to_string(151 - done) +
                     " of train.tokens 151 are still to be trained on and the epoch caps leave " +
                     std::to_string(150 - done)));
  CHECK(run.run({capped, "train.global_batch=2", "train.tokens=150"}) == ExitCode::finished);
  CHECK(run.metrics().steps.back().tokens == 150);
  CHECK(run.metrics().steps.size() == 5);
}

// Steps of 4 of the 10 samples: two, of which one has the padded sample if the seed says so.
std::vector<std::string> short_of_data(TinyRun& run) {
  for (int seed = 1; seed < 20; ++seed) {
    std::vector<std::string> settings = {"data.train=[{path: b.txt, epochs: 1}]", "train.tokens=128",
                                         "run.seed=" + std::to_string(seed)};
    std::filesystem::remove_all(run.paths.folder);
    if (contains(message_of<UserError>([&] { run.run(settings, 0); }), "the epoch caps leave 118")) return settings;
  }
  FAIL("no seed puts the padded sample into the first steps");
  return {};
}

TEST_CASE("a step that the data does not suffice for is not begun: what was trained is saved, and said") {
  TinyRun probe;
  const std::vector<std::string> settings = short_of_data(probe);
  TinyRun run;
  run.looked_up_samples = 0;  // as if the epoch were too long to be counted at the start
  const std::string end = message_of<UserError>([&] { run.run(settings); });
  CHECK(contains(end,
                 "data.train: 10 of train.tokens 128 are still to be trained on and the epoch caps leave 0 in "
                 "whole steps of 4 samples"));
  CHECK(contains(end, "reduce train.tokens to at most 118. The run ends with step 2, which is saved in " +
                          run.paths.checkpoints().string()));
  CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{2});
  CHECK(run.metrics().steps.size() == 2);
  // Started again it is told so at once; and what it says helps.
  CHECK(contains(message_of<UserError>([&] { run.run(settings); }), "10 of train.tokens 128"));
  CHECK(run.metrics().steps.size() == 2);
  const LoadedConfig less = run.config({settings[0], settings[2], "train.tokens=118"});
  CHECK(already_complete(run.prepare(less), less.config).has_value());
}

}  // namespace
}  // namespace scaletrain
