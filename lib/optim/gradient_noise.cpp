#include "optim/gradient_noise.h"

#include <cmath>

#include "base/error.h"

namespace scaletrain {

std::array<std::int64_t, 2> halves_of(std::int64_t batch) {
  SCALETRAIN_CHECK_LE(2, batch);
  return {batch / 2, batch - batch / 2};
}

bool measures_noise(const std::optional<GradientNoiseConfig>& config, std::int64_t step, std::int64_t batch) {
  return config && batch >= 2 && step % config->every == 0;
}

std::optional<NoiseMeasurement> measure_noise(const std::array<HalfGradient, 2>& halves, double norm,
                                              double micro_scale, std::int64_t batch) {
  SCALETRAIN_CHECK(micro_scale > 0 && batch >= 2);
  const auto& [first, second] = halves;
  if (first.tokens < 1 || second.tokens < 1) return std::nullopt;
  const auto tokens = static_cast<double>(first.tokens + second.tokens);
  const double w1 = static_cast<double>(first.tokens) / tokens;
  const double w2 = static_cast<double>(second.tokens) / tokens;
  // |wi·gi|²
  const auto share = [&](const HalfGradient& half) {
    return half.sum_of_squares / (tokens * micro_scale) / (tokens * micro_scale);
  };
  const double weighted1 = share(first);
  const double weighted2 = share(second);
  NoiseMeasurement measured;
  measured.square = (norm * norm - weighted1 - weighted2) / (2.0 * w1 * w2);
  measured.variance =
      static_cast<double>(batch) * w1 * w2 * (weighted1 / (w1 * w1) + weighted2 / (w2 * w2) - 2.0 * measured.square);
  if (!std::isfinite(measured.square) || !std::isfinite(measured.variance)) return std::nullopt;
  return measured;
}

std::optional<GradientNoiseState> continue_gradient_noise(const std::optional<GradientNoiseState>& before,
                                                          const std::optional<GradientNoiseConfig>& config) {
  if (!config) return std::nullopt;
  return before.value_or(GradientNoiseState());
}

GradientNoiseState after_measurement(const GradientNoiseState& before, const NoiseMeasurement& measured, double decay) {
  const auto average = [decay](double old, double now) { return decay * old + (1.0 - decay) * now; };
  return {.square = average(before.square, measured.square),
          .variance = average(before.variance, measured.variance),
          .weight = average(before.weight, 1.0)};
}

std::optional<double> noise_scale(const GradientNoiseState& state) {
  if (!(state.square > 0.0) || !(state.variance > 0.0)) return std::nullopt;
  const double scale = state.variance / state.square;
  return std::isfinite(scale) ? std::optional(scale) : std::nullopt;
}

}  // namespace scaletrain
