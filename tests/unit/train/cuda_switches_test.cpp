// What a run may ask for that changes its batch or its model, on a GPU: as on processors, and to the bit after a
// resume.
#include "checkpoint/box_copy.h"
#include "checkpoint/hugging_face/hugging_face.h"
#include "optim/adaptive_batch.h"
#include "optim/gradient_noise.h"
#include "support/cuda/gpu_under_test.h"
#include "support/near.h"
#include "train_helpers.h"

using namespace scaletrain;

namespace {

using Settings = std::vector<std::string>;

struct GpuRun : TinyRun {
  GpuRun() {
    make_backend = [](const CpuOptions& options) { return make_gpu(options.compute); };
    overrides_always.emplace_back("run.device=cuda");
  }
};

// Of the GPU's run that nobody interrupted.
Metrics resumed_to_the_bit(const Settings& settings) {
  GpuRun whole;
  CHECK(whole.run(settings) == ExitCode::finished);
  GpuRun parts;
  CHECK(parts.run(settings, 3) == ExitCode::interrupted);
  CHECK(parts.run(settings) == ExitCode::finished);
  check_same_numbers(whole.metrics(), parts.metrics());
  const std::int64_t last = whole.metrics().steps.back().step;
  CHECK(tensors_of(whole.checkpoint(last)) == tensors_of(parts.checkpoint(last)));
  return whole.metrics();
}

void check_losses_of_processors(const Metrics& found, const Metrics& wanted) {
  REQUIRE(found.steps.size() == wanted.steps.size());
  for (std::size_t i = 0; i < found.steps.size(); ++i) {
    CAPTURE(i);
    CHECK(found.steps[i].tokens == wanted.steps[i].tokens);
    CHECK(found.steps[i].loss == Near(wanted.steps[i].loss).epsilon(1e-4));
  }
}

}  // namespace

TEST_CASE("a_batch_that_grows_by_steps_does_so_on_a_gpu") {
  if (is_gpu_missing()) return;
  // 1, 1, 2, 2, 3, 3 and then 4 samples.
  const Settings settings = {"train.batch_ramp={from: 1, by: 1, steps: 6}", "precision.compute=fp32", "train.steps=8"};
  const Metrics found = resumed_to_the_bit(settings);
  CHECK(found.steps[1].tokens == 2 * 16);
  CHECK(found.steps[5].tokens == 12 * 16);
  CHECK(found.steps[6].tokens == 16 * 16);
  TinyRun processors;
  REQUIRE(processors.run(settings) == ExitCode::finished);
  check_losses_of_processors(found, processors.metrics());
}

TEST_CASE("a_batch_that_is_auto_follows_the_noise_that_a_gpu_measures") {
  if (is_gpu_missing()) return;
  const BatchAutoConfig bounds{.min = 2, .max = 16, .every = 2};
  const Metrics found =
      resumed_to_the_bit({"train.global_batch=auto", "train.batch_auto={min: 2, max: 16, every: 2}",
                          "log.gradient_noise={every: 1, decay: 0.5}", "train.tokens=768", "precision.compute=fp32"});
  GradientNoiseState noise;
  std::int64_t batch = 2;
  std::int64_t most = 0;
  for (const StepRecord& step : found.steps) {
    CAPTURE(step.step);
    CHECK(step.batch == batch);
    most = std::max(most, batch);
    REQUIRE(step.noise.has_value());
    noise = after_measurement(noise, {.square = step.noise->square, .variance = step.noise->variance}, 0.5);
    batch = adapted_batch(bounds, step.step, batch, noise_scale(noise));
  }
  CHECK(most > 2);
}

TEST_CASE("a_model_that_grows_begins_on_a_gpu_at_the_loss_of_that_which_it_grew_from") {
  if (is_gpu_missing()) return;
  const Settings model = {"model.layers=2", "model.activation=gelu_tanh", "train.steps=3", "train.lr_schedule.warmup=1",
                          "precision.compute=fp32"};
  TinyRun before;
  REQUIRE(before.run(model) == ExitCode::finished);
  const Config config = before.config(model).config;
  const RunPlan plan = plan_for(config, 1);
  const Checkpoint checkpoint(before.checkpoint(3));
  HuggingFaceExport request{.folder = before.folder / "exported", .model = config.model, .tokenizer_files = {}};
  request.model.vocab = plan.phases[0].model.vocab;
  export_hugging_face(
      plan.phases[0].table,
      [&](const Parameter& parameter, View out) { checkpoint.read(parameter.name, whole_box(parameter.shape), out); },
      request);
  const auto train = [&](TinyRun& run, const Settings& more) {
    Settings settings = model;
    settings.push_back("model.init={from: " + request.folder.string() + "}");
    settings.insert(settings.end(), more.begin(), more.end());
    REQUIRE(run.run(settings) == ExitCode::finished);
    return run.metrics();
  };
  GpuRun same;
  GpuRun deeper;
  TinyRun deeper_on_processors;
  const Settings growth = {"model.layers=3", "model.grow={order: stack}"};
  const Metrics found = train(deeper, growth);
  // Zeros are added.
  CHECK(found.steps[0].loss == train(same, {}).steps[0].loss);
  check_losses_of_processors(found, train(deeper_on_processors, growth));
}
