// The gradient noise of golden models, from the squared norms of half and whole batches, held against PyTorch in
// float64 (make_gradient_noise.py).
#include "optim/gradient_noise.h"

#include <array>

#include "golden_models.h"
#include "support/near.h"

namespace scaletrain {

namespace {

// All targets learned: where one is masked the successor of its token is learned, as the script has it.
std::vector<std::int32_t> unmasked(const Golden& golden) {
  std::vector<std::int32_t> targets = golden.targets;
  const auto vocab = static_cast<std::int32_t>(*golden.source.model_config().vocab);
  for (std::size_t i = 0; i < targets.size(); ++i)
    if (targets[i] < 0) targets[i] = (golden.ids[i] + 1) % vocab;
  return targets;
}

HalfGradient gradient_of(Golden& golden, const std::vector<std::int32_t>& targets, std::int64_t first,
                         std::int64_t rows, double micro_scale) {
  ModelRunner& runner = golden.runner;
  runner.store.zero_gradients(*runner.stream);
  HalfGradient out;
  for (std::int64_t row = first; row < first + rows; row += micro_shape.rows()) {
    const auto wanted = golden.part(targets, row, micro_shape.rows());
    runner.train(micro_shape, golden.part(golden.ids, row, micro_shape.rows()), wanted, micro_scale);
    for (const std::int32_t target : wanted) out.tokens += target >= 0 ? 1 : 0;
  }
  out.sum_of_squares = gradient_share(*runner.backend, *runner.stream, runner.store);
  return out;
}

void check_noise(const std::string& name, const nlohmann::json& all, const std::string& kind,
                 std::unique_ptr<Backend> backend, double tolerance) {
  CAPTURE(name);
  CAPTURE(kind);
  Golden golden(name, std::move(backend), {});
  const std::vector<std::int32_t> targets = kind == "even" ? unmasked(golden) : golden.targets;
  const nlohmann::json& expected = all.at(name).at(kind);
  const double micro_scale = 1.0 / static_cast<double>(batch_shape.rows());
  GradientNoiseState state;
  for (std::int64_t step = 0; step < num_steps; ++step) {
    CAPTURE(step);
    const std::int64_t first = step * batch_shape.rows();
    const std::array<HalfGradient, 2> halves = {
        gradient_of(golden, targets, first, micro_shape.rows(), micro_scale),
        gradient_of(golden, targets, first + micro_shape.rows(), micro_shape.rows(), micro_scale)};
    const HalfGradient whole = gradient_of(golden, targets, first, batch_shape.rows(), micro_scale);
    const double norm = std::sqrt(whole.sum_of_squares) / (micro_scale * static_cast<double>(whole.tokens));
    const auto measured = measure_noise(halves, norm, micro_scale, batch_shape.samples);
    REQUIRE(measured.has_value());
    const auto at = static_cast<std::size_t>(step);
    // The differences of norms: relative to these.
    const double size = norm * norm;
    CHECK(std::abs(measured->square - expected.at("square").at(at).get<double>()) <= tolerance * size);
    CHECK(std::abs(measured->variance - expected.at("variance").at(at).get<double>()) <= 4 * tolerance * size);
    state = after_measurement(state, *measured, all.at("decay").get<double>());
  }
  const auto scale = noise_scale(state);
  REQUIRE(scale.has_value());
  CHECK(*scale == Near(expected.at("scale").get<double>()).epsilon(100 * tolerance));
}

}  // namespace

TEST_CASE("golden_gradient_noise_agrees_with_pytorch_s_gradients_of_half_batches") {
  const auto all = nlohmann::json::parse(read_text_file(golden_folder("gradient_noise.json"), 1u << 20));
  for (const std::string name : {"gpt2", "llama_untied"}) {
    for (const std::string kind : {"even", "uneven"}) {
      check_noise(name, all, kind, make_reference_backend(DType::f64), 1e-11);
      check_noise(name, all, kind, make_cpu_backend({.threads = 2, .compute = DType::f32}), 1e-5);
    }
  }
}

}  // namespace scaletrain
