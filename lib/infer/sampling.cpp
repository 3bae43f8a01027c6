#include "infer/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "base/error.h"

namespace scaletrain {

namespace {

constexpr double removed = -std::numeric_limits<double>::infinity();

std::vector<double> checked_classes(std::span<const float> logits, std::int64_t num_classes) {
  SCALETRAIN_CHECK(num_classes > 0 && static_cast<std::size_t>(num_classes) <= logits.size());
  std::vector<double> scores(static_cast<std::size_t>(num_classes));
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == std::numeric_limits<float>::infinity())
      throw InputError(fmt::format(
          "the model's logit of token {} is {}: its weights are damaged or its training diverged", i, logits[i]));
    scores[i] = static_cast<double>(logits[i]);
  }
  return scores;
}

// Each token once, however often the text has it.
void penalise_repetition(std::vector<double>& scores, double penalty, std::span<const std::int32_t> past) {
  if (penalty == 1.0) return;
  std::vector<bool> seen(scores.size(), false);
  for (const std::int32_t token : past)
    if (static_cast<std::size_t>(token) < seen.size()) seen[static_cast<std::size_t>(token)] = true;
  for (std::size_t i = 0; i < scores.size(); ++i)
    if (seen[i]) scores[i] = scores[i] < 0.0 ? scores[i] * penalty : scores[i] / penalty;
}

// Differences from the largest, so that no temperature makes them overflow.
void scale(std::vector<double>& scores, double temperature) {
  const double largest = *std::max_element(scores.begin(), scores.end());
  // All -infinity: a distribution of nothing, which a trained model does not give; leave every class its chance.
  for (double& score : scores) score = largest == removed ? 0.0 : (score - largest) / temperature;
}

void keep_top_k(std::vector<double>& scores, std::int64_t top_k) {
  if (top_k <= 0 || static_cast<std::size_t>(top_k) >= scores.size()) return;
  std::vector<double> ordered = scores;
  const auto least = ordered.begin() + (top_k - 1);
  std::nth_element(ordered.begin(), least, ordered.end(), std::greater<>());
  for (double& score : scores)
    if (score < *least) score = removed;
}

void keep_top_p(std::vector<double>& scores, double top_p) {
  if (top_p >= 1.0) return;
  std::vector<std::size_t> kept;
  for (std::size_t i = 0; i < scores.size(); ++i)
    if (scores[i] != removed) kept.push_back(i);
  // Ascending; of equals the lowest id goes last.
  std::sort(kept.begin(), kept.end(), [&scores](std::size_t a, std::size_t b) {
    return scores[a] < scores[b] || (scores[a] == scores[b] && a > b);
  });
  double sum = 0.0;
  for (const std::size_t i : kept) sum += std::exp(scores[i]);
  double below = 0.0;
  for (std::size_t rank = 0; rank + 1 < kept.size(); ++rank) {
    below += std::exp(scores[kept[rank]]) / sum;
    if (below > 1.0 - top_p) break;
    scores[kept[rank]] = removed;
  }
}

// The likeliest has the score 0, so that p/p_max is exp(score).
void keep_min_p(std::vector<double>& scores, double min_p) {
  if (min_p <= 0.0) return;
  for (double& score : scores)
    if (std::exp(score) < min_p) score = removed;
}

}  // namespace

std::vector<double> process_logits(std::span<const float> logits, std::int64_t num_classes,
                                   const SamplingOptions& options, std::span<const std::int32_t> past) {
  std::vector<double> scores = checked_classes(logits, num_classes);
  penalise_repetition(scores, options.repetition_penalty, past);
  if (options.temperature <= 0.0) {
    const auto largest = std::max_element(scores.begin(), scores.end());
    const auto index = largest - scores.begin();
    std::fill(scores.begin(), scores.end(), removed);
    scores[static_cast<std::size_t>(index)] = 0.0;
    return scores;
  }
  scale(scores, options.temperature);
  keep_top_k(scores, options.top_k);
  keep_top_p(scores, options.top_p);
  keep_min_p(scores, options.min_p);
  return scores;
}

PhiloxKey sample_key(std::uint64_t seed, const TokenPlace& place) {
  const bool is_first = place.prompt == 0 && place.sample == 0;
  return philox_key(seed, is_first ? "generate" : fmt::format("generate/{}/{}", place.prompt, place.sample));
}

std::int32_t sample_token(std::span<const float> logits, std::int64_t num_classes, const SamplingOptions& options,
                          const TokenPlace& place, std::span<const std::int32_t> past) {
  std::vector<double> cumulative = process_logits(logits, num_classes, options, past);
  double sum = 0.0;
  for (double& value : cumulative) value = sum += std::exp(value);
  const double point = philox_uniform(sample_key(options.seed, place), static_cast<std::uint64_t>(place.index)) * sum;
  // The product can round up to the sum itself; then the last class that has any probability is meant.
  auto chosen = std::upper_bound(cumulative.begin(), cumulative.end(), point);
  if (chosen == cumulative.end()) chosen = std::lower_bound(cumulative.begin(), cumulative.end(), sum);
  return static_cast<std::int32_t>(chosen - cumulative.begin());
}

double log_probability(std::span<const float> logits, std::int64_t num_classes, std::int32_t token) {
  SCALETRAIN_CHECK(token >= 0 && token < num_classes && static_cast<std::size_t>(num_classes) <= logits.size());
  const auto classes = logits.first(static_cast<std::size_t>(num_classes));
  const auto largest = static_cast<double>(*std::max_element(classes.begin(), classes.end()));
  double sum = 0.0;
  for (const float logit : classes) sum += std::exp(static_cast<double>(logit) - largest);
  return static_cast<double>(classes[static_cast<std::size_t>(token)]) - largest - std::log(sum);
}

}  // namespace scaletrain
