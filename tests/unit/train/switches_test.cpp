// What a config may ask of training beside the plain run: each resumes to the bit, and does what it says.
#include <fmt/format.h>

#include "infer/evaluate.h"
#include "infer/model.h"
#include "train_helpers.h"

using namespace scaletrain;

namespace {

using Settings = std::vector<std::string>;

void check_resumes_to_the_bit(const Settings& settings) {
  TinyRun whole;
  CHECK(whole.run(settings) == ExitCode::finished);
  TinyRun parts;
  CHECK(parts.run(settings, 3) == ExitCode::interrupted);
  CHECK(parts.run(settings, 4) == ExitCode::interrupted);
  CHECK(parts.run(settings) == ExitCode::finished);
  check_same_numbers(whole.metrics(), parts.metrics());
  const std::int64_t last = whole.metrics().steps.back().step;
  CHECK(tensors_of(whole.checkpoint(last)) == tensors_of(parts.checkpoint(last)));
}

std::vector<double> losses_of(const Metrics& metrics) {
  std::vector<double> losses;
  for (const StepRecord& step : metrics.steps) losses.push_back(step.loss);
  return losses;
}

// Samples of 16 tokens, by step.
std::vector<std::int64_t> samples_by_step(const Metrics& metrics) {
  std::vector<std::int64_t> samples;
  std::int64_t before = 0;
  for (const StepRecord& step : metrics.steps) {
    samples.push_back((step.tokens - before) / 16);
    before = step.tokens;
  }
  return samples;
}

const Settings with_ramp = {"train.batch_ramp={from: 1, by: 1, steps: 6}"};  // to 4

}  // namespace

TEST_CASE("runs_with_each_switch_resume_to_the_bit") {
  check_resumes_to_the_bit({"train.lr_schedule={type: wsd, warmup: 2, decay_steps: 5, decay_shape: 1-sqrt}",
                            "train.ema={decay: 0.9}", "evaluate.ema=true", "train.label_smoothing=0.1",
                            "train.z_loss=1e-3"});
  check_resumes_to_the_bit({"train.lr_schedule={type: cosine_restarts, warmup: 2, restart_steps: 3}",
                            "train.tokens=768", "train.optimizer.scale_with_batch={rule: sqrt, base: 16}",
                            with_ramp.front()});
  check_resumes_to_the_bit({"train.lr_schedule={type: inverse_sqrt, warmup: 2}", with_ramp.front()});
}

TEST_CASE("a_run_of_tokens_has_the_learning_rates_of_one_of_steps_under_every_schedule") {
  for (const std::string schedule :
       {"{type: wsd, warmup: 2, decay_steps: 5}", "{type: wsd, warmup: 2, decay_share: 0.5}",
        "{type: cosine_restarts, warmup: 2, restart_steps: 3, restart_factor: 1.5}",
        "{type: inverse_sqrt, warmup: 3}"}) {
    CAPTURE(schedule);
    TinyRun steps;
    steps.run({"train.lr_schedule=" + schedule});
    TinyRun tokens;
    tokens.run({"train.lr_schedule=" + schedule, "train.tokens=768"});
    check_same_numbers(steps.metrics(), tokens.metrics());
  }
}

TEST_CASE("a_decay_that_is_longer_than_a_run_of_tokens_is_refused") {
  TinyRun run;
  const std::string refusal = message_of<UserError>([&] {
    run.prepare(run.config({"train.tokens=768", "train.lr_schedule={type: wsd, warmup: 2, decay_steps: 11}"}));
  });
  CHECK(contains(refusal,
                 "train.lr_schedule.decay_steps: a decay of 11 steps is longer than the 10 that the run has behind its "
                 "warm-up"));
}

TEST_CASE("the_learning_rate_is_scaled_with_the_batch") {
  TinyRun plain;
  plain.run();
  for (const auto& [rule, factor] : {std::pair("linear", 0.25), std::pair("sqrt", 0.5)}) {
    TinyRun scaled;
    scaled.run({fmt::format("train.optimizer.scale_with_batch={{rule: {}, base: 16}}", rule)});
    const std::vector<StepRecord> steps = scaled.metrics().steps;
    REQUIRE(steps.size() == 12);
    for (std::size_t i = 0; i < steps.size(); ++i)
      CHECK(steps[i].learning_rate == doctest::Approx(plain.metrics().steps[i].learning_rate * factor).epsilon(1e-15));
  }
}

// The first loss is of weights that nothing has updated yet.
TEST_CASE("a_shaped_loss_is_what_is_optimised_and_the_cross_entropy_what_is_told") {
  TinyRun plain;
  plain.run();
  TinyRun shaped;
  shaped.run({"train.label_smoothing=0.2"});
  const Metrics metrics = shaped.metrics();
  CHECK(metrics.steps.front().loss == doctest::Approx(plain.metrics().steps.front().loss).epsilon(1e-6));
  CHECK(metrics.steps.front().grad_norm != plain.metrics().steps.front().grad_norm);
  CHECK(losses_of(metrics) != losses_of(plain.metrics()));
  TinyRun with_z;
  with_z.run({"train.z_loss=0.1"});
  CHECK(with_z.metrics().steps.front().loss == doctest::Approx(plain.metrics().steps.front().loss).epsilon(1e-6));
  CHECK(with_z.metrics().steps.front().grad_norm != plain.metrics().steps.front().grad_norm);
}

TEST_CASE("a_batch_grows_with_the_steps_and_the_run_ends_with_its_tokens") {
  TinyRun steps;
  steps.run(with_ramp);
  CHECK(samples_by_step(steps.metrics()) == std::vector<std::int64_t>{1, 1, 2, 2, 3, 3, 4, 4, 4, 4, 4, 4});
  // 12 samples in the ramp, and 3 steps of 4 behind it.
  TinyRun tokens;
  tokens.run({"train.tokens=384", with_ramp.front()});
  CHECK(samples_by_step(tokens.metrics()) == std::vector<std::int64_t>{1, 1, 2, 2, 3, 3, 4, 4, 4});
  CHECK(tokens.metrics().steps.back().tokens == 384);
  // The same samples in the same order, whatever the batches are: the first step alone of two runs has one.
  TinyRun small;
  small.run({"train.global_batch=1", "train.steps=2"});
  CHECK(small.metrics().steps[0].loss == doctest::Approx(steps.metrics().steps[0].loss).epsilon(1e-6));
}

TEST_CASE("averages_are_saved_evaluated_and_exported") {
  const Settings settings = {"train.ema={decay: 0.5}", "evaluate.ema=true", "evaluate.batches=0"};
  TinyRun run;
  CHECK(run.run(settings) == ExitCode::finished);
  TinyRun plain;
  CHECK(plain.run({"evaluate.batches=0"}) == ExitCode::finished);
  CHECK(losses_of(run.metrics()) == losses_of(plain.metrics()));  // it only looks on
  const double of_averages = run.metrics().evaluations.back().loss;
  const double of_weights = plain.metrics().evaluations.back().loss;
  CHECK(of_averages != of_weights);
  const auto backend = make_cpu_backend({.threads = 1});
  const auto stream = backend->make_stream();
  const auto loss_of = [&](const LocatedModel& located) {
    LoadedModel model(located, *backend, *stream);
    const ValidationConfig& set = model.config().data.validation.back();
    DataOptions options;
    options.vocab = model.transformer().spec().vocab;
    options.context = 16;
    const auto opened = open_validation_set(set, model.config().data, model.tokenizer(), options, "set");
    return evaluate_model(model, *opened, opened->num_samples(), 4, {}).loss;
  };
  const std::filesystem::path last = run.checkpoint(12);
  CHECK(loss_of({.path = last}) == doctest::Approx(of_weights).epsilon(1e-6));
  CHECK(loss_of({.path = last, .averages = true}) == doctest::Approx(of_averages).epsilon(1e-6));
  const std::string refusal = message_of<UserError>([&] { loss_of({.path = plain.checkpoint(12), .averages = true}); });
  CHECK(contains(refusal, "holds no averages of its weights: it was trained without train.ema"));
  // A run may not begin to average in the middle, nor stop.
  const std::string changed = message_of<UserError>([&] { plain.prepare(plain.config({"train.ema={}"})); });
  CHECK(contains(changed, "train.ema"));
}
