#include "optim/gradient_noise.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/error.h"
#include "support/near.h"

using namespace scaletrain;

namespace {

// A loss |w - x|²/2 whose data x has a normal distribution: the gradient at w is G = w - mean(x), and a token's has a
// variance that is known in each direction.
struct Quadratic {
  std::vector<double> gradient = {0.5, -1.0, 0.25, 2.0, 0.0, 0.0, 0.0, 0.0};
  std::vector<double> deviation = {3.0, 1.0, 0.5, 2.0, 4.0, 1.0, 2.5, 0.1};
  double square() const {
    double sum = 0;
    for (const double g : gradient) sum += g * g;
    return sum;
  }
  double variance() const {
    double sum = 0;
    for (const double d : deviation) sum += d * d;
    return sum;
  }
  // The sum over so many tokens.
  std::vector<double> sum_of(std::int64_t tokens, std::mt19937_64& dice) const {
    std::normal_distribution<double> normal;
    std::vector<double> sum(gradient.size(), 0.0);
    for (std::int64_t token = 0; token < tokens; ++token)
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i] + deviation[i] * normal(dice);
    return sum;
  }
};

double squares_of(const std::vector<double>& values, double scale) {
  double sum = 0;
  for (const double value : values) sum += value * scale * value * scale;
  return sum;
}

struct Statistics {
  double mean = 0, error = 0;  // of the mean
};

Statistics statistics_of(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const double value : values) {
    sum += value;
    squares += value * value;
  }
  const double mean = sum / count;
  return {mean, std::sqrt((squares / count - mean * mean) / count)};
}

}  // namespace

// Tokens of a sample are drawn one by one here, so that a sample of t tokens has a t-th of a token's variance.
TEST_CASE("estimates_have_the_expectations_of_a_quadratic_loss_with_known_noise_also_where_tokens_are_uneven") {
  const Quadratic loss;
  constexpr std::int64_t batch = 6;
  constexpr double micro_scale = 0.375;
  for (const std::int64_t first : {12, 5, 23}) {
    CAPTURE(first);
    const std::int64_t second = 24 - first;
    std::mt19937_64 dice(7);
    std::vector<double> squares, variances;
    for (int measurement = 0; measurement < 20000; ++measurement) {
      const std::vector<double> sum1 = loss.sum_of(first, dice);
      const std::vector<double> sum2 = loss.sum_of(second, dice);
      std::vector<double> all = sum1;
      for (std::size_t i = 0; i < all.size(); ++i) all[i] += sum2[i];
      const auto tokens = static_cast<double>(first + second);
      const auto measured = measure_noise(
          {HalfGradient{squares_of(sum1, micro_scale), first}, HalfGradient{squares_of(sum2, micro_scale), second}},
          std::sqrt(squares_of(all, 1.0 / tokens)), micro_scale, batch);
      REQUIRE(measured.has_value());
      squares.push_back(measured->square);
      variances.push_back(measured->variance);
    }
    const Statistics square = statistics_of(squares);
    const Statistics variance = statistics_of(variances);
    const double tokens_of_sample = 24.0 / batch;
    CHECK(std::abs(square.mean - loss.square()) <= 4 * square.error);
    CHECK(std::abs(variance.mean - loss.variance() / tokens_of_sample) <= 4 * variance.error);
    CHECK(square.error < 0.1);  // so that the above says something
    CHECK(variance.error < 0.2);
  }
}

TEST_CASE("equal_halves_give_the_estimates_of_the_paper") {
  // |g1|² = 9, |g2|² = 5, |g|² = 4; B_small 8, B_big 16, c = 1/2 and 10 tokens a half.
  const double c = 0.5;
  const auto measured =
      measure_noise({HalfGradient{9.0 * 100 * c * c, 10}, HalfGradient{5.0 * 100 * c * c, 10}}, 2.0, c, 16);
  REQUIRE(measured.has_value());
  const double small = 7.0, big = 4.0;
  CHECK(measured->square == Near((16 * big - 8 * small) / (16 - 8)));
  CHECK(measured->variance == Near((small - big) / (1.0 / 8 - 1.0 / 16)));
}

TEST_CASE("a_half_without_tokens_and_what_is_not_finite_measure_nothing") {
  const HalfGradient half{1.0, 4};
  CHECK(measure_noise({half, half}, 1.0, 1.0, 8).has_value());
  CHECK_FALSE(measure_noise({half, HalfGradient{0.0, 0}}, 1.0, 1.0, 8).has_value());
  CHECK_FALSE(measure_noise({HalfGradient{0.0, 0}, half}, 1.0, 1.0, 8).has_value());
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK_FALSE(measure_noise({half, HalfGradient{infinity, 4}}, 1.0, 1.0, 8).has_value());
  CHECK_FALSE(measure_noise({half, half}, std::nan(""), 1.0, 8).has_value());
}

TEST_CASE("the_noise_scale_is_the_quotient_of_averages_and_is_not_known_while_noise_hides_the_gradient") {
  GradientNoiseState state;
  CHECK_FALSE(noise_scale(state).has_value());
  state = after_measurement(state, {.square = -1.0, .variance = 8.0}, 0.5);
  CHECK_FALSE(noise_scale(state).has_value());
  state = after_measurement(state, {.square = 3.0, .variance = 4.0}, 0.5);
  // Averages of weights 1/4 and 1/2.
  CHECK(state.square == 1.25);
  CHECK(state.variance == 4.0);
  CHECK(state.weight == 0.75);
  CHECK(noise_scale(state) == 4.0 / 1.25);
  CHECK_FALSE(noise_scale(after_measurement(GradientNoiseState(), {.square = 1.0, .variance = 0.0}, 0.5)).has_value());
}

TEST_CASE("steps_are_measured_at_even_distances_and_a_batch_of_one_sample_is_not") {
  const GradientNoiseConfig config{.every = 3};
  CHECK_FALSE(measures_noise(std::nullopt, 3, 8));
  CHECK_FALSE(measures_noise(config, 1, 8));
  CHECK_FALSE(measures_noise(config, 2, 8));
  CHECK(measures_noise(config, 3, 8));
  CHECK(measures_noise(config, 6, 2));
  CHECK_FALSE(measures_noise(config, 6, 1));
  CHECK(halves_of(7) == std::array<std::int64_t, 2>{3, 4});
  CHECK(halves_of(2) == std::array<std::int64_t, 2>{1, 1});
  CHECK_THROWS_AS(halves_of(1), BugError);
}

TEST_CASE("a_run_goes_on_with_its_averages_and_forgets_them_where_it_no_longer_measures") {
  const GradientNoiseState state{.square = 1.0, .variance = 2.0, .weight = 0.5};
  CHECK_FALSE(continue_gradient_noise(state, std::nullopt).has_value());
  CHECK(continue_gradient_noise(state, GradientNoiseConfig()) == state);
  CHECK(continue_gradient_noise(std::nullopt, GradientNoiseConfig()) == GradientNoiseState());
}
