// A hundred steps of two reference runs of every optimizer: the losses follow the curves that PyTorch computed in
// float64 (make_curves.py), which differ in model, text, schedule and clipping.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>

#include "golden_models.h"
#include "golden_schedules.h"

namespace scaletrain {

namespace {

// Of a run as curves.json has it.
struct ReferenceRun {
  explicit ReferenceRun(const nlohmann::json& of)
      : model(of.at("model").get<std::string>()),
        schedule(schedule_of(of.at("schedule"))),
        float32(of.at("float32").get<double>()),
        losses(of.at("losses").get<std::vector<double>>()) {
    if (const auto norm = of.at("clip_norm").get<double>(); norm > 0) clip_norm = norm;
    const auto type =
        named({OptimizerKind::adamw, OptimizerKind::sgd, OptimizerKind::lion, OptimizerKind::lamb, OptimizerKind::lars,
               OptimizerKind::ademamix, OptimizerKind::muon, OptimizerKind::adafactor},
              of.at("optimizer").get<std::string>());
    const nlohmann::json& settings = of.at("settings");
    optimizer = optimizer_of(type, [&](const char* key) -> std::optional<double> {
      if (!settings.contains(key)) return std::nullopt;
      return settings.at(key).get<double>();
    });
  }

  std::string model;
  OptimizerConfig optimizer;
  LrScheduleConfig schedule;
  std::optional<double> clip_norm;
  double float32 = 0;  // how far PyTorch in float32 is from the losses, relative
  std::vector<double> losses;
};

// Sample s of step t is window 4t + s of the text, counted round and round; its targets are the tokens one further.
std::vector<std::int32_t> windows(const std::vector<std::int32_t>& text, std::int64_t step, std::int64_t shift) {
  const std::int64_t num_windows = (std::ssize(text) - 1) / batch_shape.tokens;
  std::vector<std::int32_t> out;
  for (std::int64_t sample = 0; sample < batch_shape.samples; ++sample) {
    const std::int64_t window = (step * batch_shape.samples + sample) % num_windows;
    const auto begin = text.begin() + window * batch_shape.tokens + shift;
    out.insert(out.end(), begin, begin + batch_shape.tokens);
  }
  return out;
}

// The losses of our run.
std::vector<double> train_along(const ReferenceRun& run, const std::vector<std::int32_t>& text,
                                std::unique_ptr<Backend> backend) {
  const auto optimizer = make_optimizer(run.optimizer);
  Golden golden(run.model, std::move(backend), optimizer.get());
  ModelRunner& runner = golden.runner;
  const auto num_tokens = batch_shape.rows();
  const double micro_scale = 1.0 / static_cast<double>(num_tokens);
  const auto num_updates = std::ssize(run.losses);
  std::vector<double> losses;
  for (std::int64_t step = 0; step < num_updates; ++step) {
    runner.store.zero_gradients(*runner.stream, step);
    const double loss_sum = runner.train(batch_shape, windows(text, step, 0), windows(text, step, 1), micro_scale);
    const StepMeasurements measured{.sum_of_squares = gradient_share(*runner.backend, *runner.stream, runner.store),
                                    .loss_sum = loss_sum,
                                    .num_tokens = num_tokens,
                                    .micro_scale = micro_scale};
    const std::int64_t update = step + 1;
    const StepOutcome outcome = make_step_scalars(
        measured, {.learning_rate = learning_rate(run.schedule, run.optimizer.learning_rate, update, num_updates),
                   .clip_norm = run.clip_norm,
                   .beta1 = run.optimizer.beta1,
                   .beta2 = run.optimizer.beta2,
                   .slow = slow_mean_at(run.optimizer, update, run.optimizer.slow_warmup.value_or(0)),
                   .update = update});
    optimizer->step(*runner.backend, *runner.stream, runner.store, outcome.block);
    runner.stream->synchronize();
    losses.push_back(outcome.loss);
  }
  return losses;
}

double largest_difference(const std::vector<double>& losses, const std::vector<double>& expected) {
  REQUIRE(losses.size() == expected.size());
  double largest = 0;
  for (std::size_t step = 0; step < losses.size(); ++step)
    largest = std::max(largest, std::abs(losses[step] - expected[step]) / expected[step]);
  return largest;
}

}  // namespace

// In float64 nothing but rounding may differ: weights off by 1e-15 move a loss by at most 1.4e-13 (`rounding`), and our
// sums have other orders than PyTorch's in each of a hundred steps. In float32 PyTorch itself is off by `float32`; four
// times that, or the bound of twenty steps. Of both runs of an optimizer the larger: whether a sign of Lion's direction
// turns by a rounding is chance.
TEST_CASE("golden_losses_of_two_reference_runs_of_every_optimizer_follow_their_curves") {
  const auto file = nlohmann::json::parse(read_text_file(golden_folder("curves.json"), 1u << 20));
  std::map<std::string, int> runs_of;
  std::map<std::string, double> float32_of;
  for (const nlohmann::json& of : file.at("runs")) {
    double& most = float32_of[of.at("optimizer").get<std::string>()];
    most = std::max(most, ReferenceRun(of).float32);
  }
  for (const nlohmann::json& of : file.at("runs")) {
    const ReferenceRun run(of);
    const auto text = file.at("texts").at(run.model).get<std::vector<std::int32_t>>();
    const auto name = of.at("optimizer").get<std::string>();
    CAPTURE(name);
    CAPTURE(run.model);
    ++runs_of[name];
    REQUIRE(run.losses.size() == 100);
    CHECK(run.losses.back() < run.losses.front() - 0.4);  // it trains
    const double in_double = largest_difference(train_along(run, text, make_reference_backend(DType::f64)), run.losses);
    CHECK(in_double <= in_f64.training);
    const double in_single =
        largest_difference(train_along(run, text, make_cpu_backend({.threads = 2, .compute = DType::f32})), run.losses);
    CHECK(in_single <= std::max(in_f32.training, 4 * float32_of[name]));
  }
  CHECK(runs_of.size() == 8);
  for (const auto& of_optimizer : runs_of) CHECK(of_optimizer.second == 2);
}

}  // namespace scaletrain
