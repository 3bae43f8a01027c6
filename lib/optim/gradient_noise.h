// The gradient noise scale: the batch, in samples, at which the noise of the gradient is as large as the gradient
// itself. Below it more samples a step shorten training in proportion; far above it they are wasted. Source: McCandlish
// et al. 2018 (arXiv 1812.06162), the "simple" scale tr(Σ) / |G|² and the unbiased estimates of its appendix A.1: G is
// the gradient of the expected loss, Σ the covariance of one sample's gradient. Pure.
//
// What is measured: the gradients g1 and g2 of the two halves of a step's batch, of b samples each, and g, that of all
// B = 2·b. Their squared norms have the expectations |G|² + tr(Σ) / b and |G|² + tr(Σ) / B, and so
//   |G|²  ≈  (B·|g|² - b·(|g1|² + |g2|²)/2) / (B - b)          =  g1·g2
//   tr(Σ) ≈  ((|g1|² + |g2|²)/2 - |g|²) / (1/b - 1/B)          =  (b/2)·|g1 - g2|²
// Both are averaged over measurements before one is divided by the other, as the quotient of estimates is biased.
//
// Why halves of the batch and not micro-batches or replicas: which samples are in a half depends on the batch alone, so
// that every layout measures the same, after reductions that it makes anyway; and more parts would hardly help. What
// limits the quotient is the error of |G|², the mean of gi·gj over pairs of n parts: its standard deviation falls as
// the root of n / (n - 1), from halves to ever so many parts by 1.41.
//
// Where the halves have different numbers of learned tokens n1 and n2 (a loss is the mean over the tokens, and
// n·g = n1·g1 + n2·g2) they count as B·n1/n and B·n2/n samples: with w1 = n1/n and w2 = n2/n
//   |G|²  ≈  (|g|² - w1²·|g1|² - w2²·|g2|²) / (2·w1·w2),   tr(Σ) ≈ B·w1·w2·(|g1|² + |g2|² - 2·|G|²)
// which are the lines above where w1 = w2.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "config/config.h"

namespace scaletrain {

// Samples of the halves of a batch: the first so many of its order, and the others. A batch has two samples at least.
std::array<std::int64_t, 2> halves_of(std::int64_t batch);

// Whether the step of this number (from 1) measures, with this batch. A batch of one sample has no halves.
bool measures_noise(const std::optional<GradientNoiseConfig>& config, std::int64_t step, std::int64_t batch);

struct HalfGradient {
  double sum_of_squares = 0;  // of the summed gradient, as GradientSquares has it: of c·n·g (step_scalars.h)
  std::int64_t tokens = 0;    // n
};

// Estimates of one step; either may be negative.
struct NoiseMeasurement {
  double square = 0;    // of |G|²
  double variance = 0;  // of tr(Σ), of a sample
};

// norm: |g|. micro_scale: c. batch: B. Nothing where a half has no token to learn from, or something is not finite.
std::optional<NoiseMeasurement> measure_noise(const std::array<HalfGradient, 2>& halves, double norm,
                                              double micro_scale, std::int64_t batch);

// Exponential moving averages of the measurements, from zero; the same on every rank, and in every checkpoint.
struct GradientNoiseState {
  double square = 0;
  double variance = 0;
  double weight = 0;  // the same average of ones: what they are to be divided by
  bool operator==(const GradientNoiseState&) const = default;
};

// What a run goes on with: nothing where it does not measure.
std::optional<GradientNoiseState> continue_gradient_noise(const std::optional<GradientNoiseState>& before,
                                                          const std::optional<GradientNoiseConfig>& config);
GradientNoiseState after_measurement(const GradientNoiseState& before, const NoiseMeasurement& measured, double decay);
// tr(Σ) / |G|² of the averages, in samples. Nothing before the first measurement, and while either is not above zero:
// then noise still hides the gradient.
std::optional<double> noise_scale(const GradientNoiseState& state);

}  // namespace scaletrain
