// What was consumed counts, whatever the batches were that it was consumed in.
#include "train/run_length.h"

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
  const double before = next_learning_rate(config, state);
  CHECK(before > 0.99 * config.train.optimizer.learning_rate);
  config.train.global_batch = 32;
  CHECK(last_step(config, state) == 120 + 220);
  CHECK(next_learning_rate(config, state) == doctest::Approx(before).epsilon(1e-4));
}

}  // namespace
}  // namespace scaletrain
