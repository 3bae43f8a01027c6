// What a config may ask of training beside the plain run: each resumes to the bit, and does what it says.
#include <fmt/format.h>

#include "infer/evaluate.h"
#include "infer/model.h"
#include "optim/adaptive_batch.h"
#include "optim/gradient_noise.h"
#include "support/near.h"
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
  check_resumes_to_the_bit({"log.gradient_noise={every: 2, decay: 0.75}", with_ramp.front()});
}

TEST_CASE("the_noise_of_the_gradient_is_in_the_metrics_of_the_steps_that_measure_it") {
  TinyRun plain;
  plain.run();
  TinyRun run;
  CHECK(run.run({"log.gradient_noise={every: 3, decay: 0.5}"}) == ExitCode::finished);
  const Metrics metrics = run.metrics();
  REQUIRE(metrics.steps.size() == 12);
  GradientNoiseState state;
  for (const StepRecord& step : metrics.steps) {
    CAPTURE(step.step);
    CHECK(step.loss == Near(plain.metrics().steps.at(static_cast<std::size_t>(step.step - 1)).loss).epsilon(1e-5));
    REQUIRE(step.noise.has_value() == (step.step % 3 == 0));
    if (!step.noise) continue;
    CHECK((step.noise->batch_small == 2 && step.noise->batch_big == 4));
    CHECK(step.noise->variance > 0.0);
    state = after_measurement(state, {.square = step.noise->square, .variance = step.noise->variance}, 0.5);
    CHECK(step.noise->scale == noise_scale(state));
  }
  CHECK(state.weight == 1.0 - 1.0 / 16);
  // Nothing of it is left where it is no longer asked for.
  TinyRun without;
  CHECK(without.run({"log.gradient_noise={every: 1}"}, 3) == ExitCode::interrupted);
  CHECK(without.run({}) == ExitCode::finished);
  CHECK(without.metrics().steps.at(2).noise.has_value());
  CHECK_FALSE(without.metrics().steps.at(3).noise.has_value());
  const Checkpoint last(without.checkpoint(12));
  for (const auto& scalar : last.manifest().scalars) CHECK_FALSE(scalar.first.starts_with("gradient_noise"));
}

TEST_CASE("a_run_with_moments_in_8_bits_resumes_to_the_bit_and_keeps_them_so") {
  const Settings in_8_bits = {"model.hidden=128", "model.ffn_hidden=128", "train.optimizer.state=int8",
                              "train.ema={decay: 0.9}"};
  check_resumes_to_the_bit(in_8_bits);
  TinyRun run;
  run.run(in_8_bits, 3);
  Settings in_fp32 = in_8_bits;
  in_fp32[2] = "train.optimizer.state=fp32";
  CHECK(contains(message_of<UserError>([&] { run.prepare(run.config(in_fp32)); }), "train.optimizer.state"));
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
      CHECK(steps[i].learning_rate == Near(plain.metrics().steps[i].learning_rate * factor).epsilon(1e-15));
  }
}

// The first loss is of weights that nothing has updated yet.
TEST_CASE("a_shaped_loss_is_what_is_optimised_and_the_cross_entropy_what_is_told") {
  TinyRun plain;
  plain.run();
  TinyRun shaped;
  shaped.run({"train.label_smoothing=0.2"});
  const Metrics metrics = shaped.metrics();
  CHECK(metrics.steps.front().loss == Near(plain.metrics().steps.front().loss).epsilon(1e-6));
  CHECK(metrics.steps.front().grad_norm != plain.metrics().steps.front().grad_norm);
  CHECK(losses_of(metrics) != losses_of(plain.metrics()));
  TinyRun with_z;
  with_z.run({"train.z_loss=0.1"});
  CHECK(with_z.metrics().steps.front().loss == Near(plain.metrics().steps.front().loss).epsilon(1e-6));
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
  CHECK(small.metrics().steps[0].loss == Near(steps.metrics().steps[0].loss).epsilon(1e-6));
}

namespace {

const Settings with_auto_batch = {"train.global_batch=auto", "train.batch_auto={min: 2, max: 16, every: 2}",
                                  "log.gradient_noise={every: 1, decay: 0.5}", "train.tokens=1536"};

}  // namespace

TEST_CASE("a_batch_that_is_auto_follows_the_noise_and_the_run_ends_with_its_tokens") {
  TinyRun run;
  CHECK(run.run(with_auto_batch) == ExitCode::finished);
  const Metrics metrics = run.metrics();
  const BatchAutoConfig bounds{.min = 2, .max = 16, .every = 2};
  GradientNoiseState noise;
  std::int64_t batch = 2;
  std::int64_t most = 0;
  const std::vector<std::int64_t> samples = samples_by_step(metrics);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const StepRecord& step = metrics.steps[i];
    CAPTURE(step.step);
    CHECK(samples[i] == batch);
    CHECK(step.batch == batch);
    most = std::max(most, batch);
    if (step.noise)
      noise = after_measurement(noise, {.square = step.noise->square, .variance = step.noise->variance}, 0.5);
    batch = adapted_batch(bounds, step.step, batch, noise_scale(noise));
  }
  CHECK(most > 2);
  CHECK(metrics.steps.back().tokens >= 1536);
  CHECK(metrics.steps[metrics.steps.size() - 2].tokens < 1536);
}

TEST_CASE("a_batch_that_is_auto_resumes_to_the_bit_and_its_learning_rate_may_follow_it") {
  check_resumes_to_the_bit(with_auto_batch);
  Settings scaled = with_auto_batch;
  scaled.emplace_back("train.optimizer.scale_with_batch={rule: linear, base: 2}");
  scaled.emplace_back("train.lr_schedule={type: constant, warmup: 0}");
  check_resumes_to_the_bit(scaled);
  TinyRun run;
  run.run(scaled);
  const Metrics metrics = run.metrics();
  const double least = metrics.steps.front().learning_rate;
  for (const StepRecord& step : metrics.steps)
    CHECK(step.learning_rate == Near(least * static_cast<double>(*step.batch) / 2.0).epsilon(1e-12));
}

TEST_CASE("a_batch_that_is_auto_falls_where_the_epoch_caps_leave_fewer_samples_than_it_has") {
  TinyRun first;
  CHECK(first.run({}, 1) == ExitCode::interrupted);
  const std::int64_t samples = first.metrics().starts.at(0).sources.at(0).samples;
  Settings settings = with_auto_batch;
  settings.emplace_back("data.train=[{path: train.txt, epochs: 1}]");
  // All but the last sample, which is padded: steps of 2 come to them, and larger ones of a batch that grows may not.
  settings[3] = fmt::format("train.tokens={}", 16 * (samples / 2 * 2 - 1));
  TinyRun run;
  CHECK(run.run(settings) == ExitCode::finished);
  const std::vector<StepRecord> steps = run.metrics().steps;
  std::int64_t most = 0;
  std::int64_t sum = 0;
  for (const StepRecord& step : steps) {
    most = std::max(most, step.batch.value());
    sum += step.batch.value();
  }
  CHECK(most > 2);
  CHECK(sum == samples / 2 * 2);
  CHECK(steps.back().batch < most);
  CHECK(contains(TempFolder::read(run.paths.logs() / "rank-00000.log"),
                 "the epoch caps of data.train leave fewer samples than the batch of "));
  // A resume falls with it, to the bit.
  TinyRun parts;
  const auto all = static_cast<std::int64_t>(steps.size());
  CHECK(parts.run(settings, all - 3) == ExitCode::interrupted);
  CHECK(parts.run(settings, 2) == ExitCode::interrupted);
  CHECK(parts.run(settings) == ExitCode::finished);
  check_same_numbers(run.metrics(), parts.metrics());
  CHECK(tensors_of(run.checkpoint(all)) == tensors_of(parts.checkpoint(all)));
  // It goes on with the batch that it had, where it is given more.
  Settings longer = settings;
  longer.back() = "data.train=[{path: train.txt, epochs: 2}]";
  longer[3] = fmt::format("train.tokens={}", 16 * (samples + 64));
  CHECK(run.run(longer) == ExitCode::finished);
  CHECK(run.metrics().steps.at(steps.size()).batch >= most);
  // What not even steps of the least batch come to is refused before the first.
  settings[3] = fmt::format("train.tokens={}", 16 * (samples + 2));
  TinyRun refused;
  const std::string refusal = message_of<UserError>([&] { refused.run(settings); });
  CHECK(contains(refusal, " in whole steps of 2 samples, without padding"));
  CHECK(contains(refusal, "raise data.train[].epochs or reduce train.tokens"));
  CHECK(contains(refusal, ", or lower train.batch_auto.min, so that steps of fewer samples come to them"));
}

TEST_CASE("a_resume_with_a_batch_that_is_auto_begins_with_the_one_that_it_had") {
  const auto saved_batch = [](const TinyRun& run, std::int64_t step) {
    return read_state(Checkpoint(run.checkpoint(step)).manifest(), "manifest.json").batch;
  };
  Settings scaled = with_auto_batch;
  scaled.emplace_back("train.optimizer.scale_with_batch={rule: linear, base: 2}");
  scaled.emplace_back("train.lr_schedule={type: constant, warmup: 0}");
  scaled[3] = "train.tokens=3072";
  // Interrupted where it has grown for the first time.
  TinyRun whole;
  CHECK(whole.run(scaled) == ExitCode::finished);
  std::int64_t grown = 0;
  for (const StepRecord& step : whole.metrics().steps) grown += step.batch == 2 && grown == step.step - 1 ? 1 : 0;
  TinyRun run;
  CHECK(run.run(scaled, grown) == ExitCode::interrupted);
  const std::int64_t batch = saved_batch(run, grown).value();
  REQUIRE(batch == 4);
  // Its number in place of auto is the same learning rate: nothing to tell.
  Settings fixed = {fmt::format("train.global_batch={}", batch), scaled[3], scaled[4], scaled[5]};
  const auto log = [](const TinyRun& of) { return TempFolder::read(of.paths.logs() / "rank-00000.log"); };
  CHECK(run.run(fixed, 2) == ExitCode::interrupted);
  CHECK_FALSE(contains(log(run), "the learning rate is"));
  CHECK_FALSE(saved_batch(run, grown + 2).has_value());
  // And auto in place of a number begins with that, not with `min`.
  CHECK(run.run(scaled, 1) == ExitCode::interrupted);
  CHECK(run.metrics().steps.back().batch == batch);
  CHECK_FALSE(contains(log(run), "the learning rate is"));
  // Other bounds: what would have been, by the batch of the checkpoint, and what is.
  TinyRun raised;
  CHECK(raised.run(scaled, grown) == ExitCode::interrupted);
  Settings higher = scaled;
  higher[1] = fmt::format("train.batch_auto={{min: {}, max: {}, every: 2}}", 2 * batch, 4 * batch);
  CHECK(raised.run(higher, 1) == ExitCode::interrupted);
  CHECK(raised.metrics().steps.back().batch == 2 * batch);
  CHECK(contains(log(raised), fmt::format("step {}: the learning rate is {:.3g}, and would be {:.3g} as", grown + 1,
                                          1e-2 * static_cast<double>(batch), 0.5e-2 * static_cast<double>(batch))));
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
  CHECK(loss_of({.path = last}) == Near(of_weights).epsilon(1e-6));
  CHECK(loss_of({.path = last, .averages = true}) == Near(of_averages).epsilon(1e-6));
  const std::string refusal = message_of<UserError>([&] { loss_of({.path = plain.checkpoint(12), .averages = true}); });
  CHECK(contains(refusal, "holds no averages of its weights: it was trained without train.ema"));
  // A run may not begin to average in the middle, nor stop.
  const std::string changed = message_of<UserError>([&] { plain.prepare(plain.config({"train.ema={}"})); });
  CHECK(contains(changed, "train.ema"));
}
