#include "infer/sampling.h"

#include <cmath>
#include <limits>

#include "infer_helpers.h"

using namespace scaletrain;

TEST_CASE("temperature zero takes the largest logit, the lowest id among equals, and no class beyond the tokenizer's") {
  const std::vector<float> logits = {0.5f, 2.0f, -1.0f, 2.0f, 9.0f};
  const SamplingOptions greedy{.temperature = 0.0, .seed = 1};
  CHECK(sample_token(logits, 4, greedy, 0) == 1);
  CHECK(sample_token(logits, 5, greedy, 7) == 4);
  CHECK(sample_token(logits, 1, greedy, 0) == 0);
}

TEST_CASE("tokens are drawn as often as softmax(logits / temperature) says") {
  const std::vector<float> logits = {1.0f, 0.0f, -1.5f, 2.0f, 0.3f, 50.0f};
  const std::int64_t classes = 5;
  for (const double temperature : {0.5, 1.0, 3.0}) {
    CAPTURE(temperature);
    std::vector<double> expected;
    double sum = 0.0;
    for (std::int64_t i = 0; i < classes; ++i) {
      expected.push_back(std::exp(static_cast<double>(logits[static_cast<std::size_t>(i)]) / temperature));
      sum += expected.back();
    }
    constexpr int draws = 20000;
    std::vector<int> counts(static_cast<std::size_t>(classes));
    // Half over the positions of one text, half over seeds at one position.
    for (int n = 0; n < draws; ++n) {
      const bool by_seed = n % 2 == 0;
      const SamplingOptions options{.temperature = temperature, .seed = by_seed ? static_cast<std::uint64_t>(n) : 11u};
      ++counts[static_cast<std::size_t>(sample_token(logits, classes, options, by_seed ? 0 : n))];
    }
    double chi_square = 0.0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const double mean = draws * expected[i] / sum;
      chi_square += (counts[i] - mean) * (counts[i] - mean) / mean;
    }
    // 4 degrees of freedom: beyond 23.5 with probability 1e-4. The seeds are fixed, so this never flickers.
    CHECK(chi_square < 23.5);
  }
}

TEST_CASE("a token is a pure function of logits, seed and position") {
  std::vector<float> logits(100);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = std::sin(static_cast<float>(i));
  int differs_by_seed = 0;
  int differs_by_position = 0;
  for (int n = 0; n < 50; ++n) {
    const std::int32_t token = sample_token(logits, 100, {.temperature = 1.0, .seed = 1}, n);
    CHECK(token == sample_token(logits, 100, {.temperature = 1.0, .seed = 1}, n));
    differs_by_seed += token != sample_token(logits, 100, {.temperature = 1.0, .seed = 2}, n);
    differs_by_position += token != sample_token(logits, 100, {.temperature = 1.0, .seed = 1}, n + 1000);
  }
  CHECK(differs_by_seed > 25);
  CHECK(differs_by_position > 25);
}

TEST_CASE("extreme logits and temperatures neither overflow nor draw what has no probability") {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> logits = {-infinity, 3e38f, -3e38f, 3e38f, -infinity};
  for (int n = 0; n < 200; ++n) {
    const std::int32_t token = sample_token(logits, 5, {.temperature = 1.0, .seed = 3}, n);
    CHECK((token == 1 || token == 3));
  }
  CHECK(sample_token(std::vector<float>{1.0f, 2.0f}, 2, {.temperature = 1e-300, .seed = 3}, 0) == 1);
}

TEST_CASE("logits that no trained model gives are an input error") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const double temperature : {0.0, 1.0}) {
    const SamplingOptions options{.temperature = temperature, .seed = 3};
    CHECK(contains(message_of<InputError>([&] {
                     sample_token(std::vector<float>{1, nan}, 2, options, 0);
                   }),
                   "token 1"));
    const std::vector<float> infinite = {std::numeric_limits<float>::infinity(), 0};
    CHECK_THROWS_AS(sample_token(infinite, 2, options, 0), InputError);
  }
}
