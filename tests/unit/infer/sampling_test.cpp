#include "infer/sampling.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/json.h"
#include "infer_helpers.h"
#include "support/near.h"

using namespace scaletrain;

TEST_CASE("temperature zero takes the largest logit, the lowest id among equals, and no class beyond the tokenizer's") {
  const std::vector<float> logits = {0.5f, 2.0f, -1.0f, 2.0f, 9.0f};
  const SamplingOptions greedy{.temperature = 0.0, .seed = 1};
  CHECK(sample_token(logits, 4, greedy, {}) == 1);
  CHECK(sample_token(logits, 5, greedy, {.index = 7}) == 4);
  CHECK(sample_token(logits, 1, greedy, {}) == 0);
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
      ++counts[static_cast<std::size_t>(sample_token(logits, classes, options, {.index = by_seed ? 0 : n}))];
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
    const std::int32_t token = sample_token(logits, 100, {.temperature = 1.0, .seed = 1}, {.index = n});
    CHECK(token == sample_token(logits, 100, {.temperature = 1.0, .seed = 1}, {.index = n}));
    differs_by_seed += token != sample_token(logits, 100, {.temperature = 1.0, .seed = 2}, {.index = n});
    differs_by_position += token != sample_token(logits, 100, {.temperature = 1.0, .seed = 1}, {.index = n + 1000});
  }
  CHECK(differs_by_seed > 25);
  CHECK(differs_by_position > 25);
}

TEST_CASE("extreme logits and temperatures neither overflow nor draw what has no probability") {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> logits = {-infinity, 3e38f, -3e38f, 3e38f, -infinity};
  for (int n = 0; n < 200; ++n) {
    const std::int32_t token = sample_token(logits, 5, {.temperature = 1.0, .seed = 3}, {.index = n});
    CHECK((token == 1 || token == 3));
  }
  CHECK(sample_token(std::vector<float>{1.0f, 2.0f}, 2, {.temperature = 1e-300, .seed = 3}, {}) == 1);
}

TEST_CASE("logits that no trained model gives are an input error") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const double temperature : {0.0, 1.0}) {
    const SamplingOptions options{.temperature = temperature, .seed = 3};
    CHECK(contains(message_of<InputError>([&] {
                     sample_token(std::vector<float>{1, nan}, 2, options, {});
                   }),
                   "token 1"));
    const std::vector<float> infinite = {std::numeric_limits<float>::infinity(), 0};
    CHECK_THROWS_AS(sample_token(infinite, 2, options, {}), InputError);
  }
}

TEST_CASE("every prompt and sample has a stream of its own, the first one that of a single text") {
  const std::vector<float> logits(1000, 0.0f);
  const SamplingOptions options{.temperature = 1.0, .seed = 5};
  const auto tokens_of = [&](std::int64_t prompt, std::int64_t sample) {
    std::vector<std::int32_t> tokens;
    for (std::int64_t i = 0; i < 20; ++i)
      tokens.push_back(sample_token(logits, 1000, options, {.index = i, .prompt = prompt, .sample = sample}));
    return tokens;
  };
  std::set<std::vector<std::int32_t>> seen;
  for (std::int64_t prompt = 0; prompt < 4; ++prompt)
    for (std::int64_t sample = 0; sample < 12; ++sample) seen.insert(tokens_of(prompt, sample));
  CHECK(seen.size() == 48);
  // What a single text of this seed was drawn from before there were several.
  for (std::int64_t i = 0; i < 20; ++i)
    CHECK(tokens_of(0, 0)[static_cast<std::size_t>(i)] ==
          static_cast<std::int32_t>(philox_uniform(philox_key(5, "generate"), static_cast<std::uint64_t>(i)) * 1000.0));
}

TEST_CASE("processed logits are those of Hugging Face's processors, alone and one after the other") {
  const nlohmann::json golden =
      read_json_file(std::filesystem::path(SCALETRAIN_GOLDEN_FOLDER) / "sampling" / "processors.json");
  std::int64_t cases = 0;
  for (const nlohmann::json& one : golden.at("cases")) {
    const auto logits = one.at("logits").get<std::vector<float>>();
    const auto past = one.at("past").get<std::vector<std::int32_t>>();
    const SamplingOptions options{.repetition_penalty = one.at("repetition_penalty"),
                                  .temperature = one.at("temperature"),
                                  .top_k = one.at("top_k"),
                                  .top_p = one.at("top_p"),
                                  .min_p = one.at("min_p")};
    CAPTURE(one.at("name").get<std::string>());
    const std::vector<double> scores = process_logits(logits, static_cast<std::int64_t>(logits.size()), options, past);
    double sum = 0.0;
    for (const double score : scores) sum += std::exp(score);
    const auto expected = one.at("probabilities").get<std::vector<double>>();
    REQUIRE(expected.size() == scores.size());
    for (std::size_t i = 0; i < scores.size(); ++i) {
      CAPTURE(i);
      CHECK((std::exp(scores[i]) == 0.0) == (expected[i] == 0.0));
      CHECK(std::exp(scores[i]) / sum == Near(expected[i]).epsilon(1e-12));
    }
    CHECK(log_probability(logits, static_cast<std::int64_t>(logits.size()), past.back()) ==
          Near(one.at("log_probability").get<double>()).epsilon(1e-12));
    ++cases;
  }
  CHECK(cases >= 20);
}

TEST_CASE("of equals top-k keeps all, top-p the lowest ids, and nothing removes the likeliest") {
  const std::vector<float> logits = {0.0f, 1.0f, 1.0f, 1.0f, -2.0f};
  const auto kept = [&](const SamplingOptions& options) {
    std::vector<std::size_t> ids;
    const std::vector<double> scores = process_logits(logits, 5, options, {});
    for (std::size_t i = 0; i < scores.size(); ++i)
      if (std::isfinite(scores[i])) ids.push_back(i);
    return ids;
  };
  CHECK(kept({.top_k = 2}) == std::vector<std::size_t>{1, 2, 3});
  CHECK(kept({.top_k = 4}) == std::vector<std::size_t>{0, 1, 2, 3});
  CHECK(kept({.top_p = 0.5}) == std::vector<std::size_t>{1, 2});
  CHECK(kept({.top_p = 0.0}) == std::vector<std::size_t>{1});
  CHECK(kept({.min_p = 1.0}) == std::vector<std::size_t>{1, 2, 3});
  CHECK(kept({.top_k = 1, .top_p = 0.0, .min_p = 1.0}) == std::vector<std::size_t>{1});
}
