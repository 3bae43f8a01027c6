#include "infer/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/numbers/philox.h"
#include "nn/decode.h"

namespace scaletrain {

std::int32_t sample_token(std::span<const float> logits, std::int64_t num_classes, const SamplingOptions& options,
                          std::int64_t index) {
  SCALETRAIN_CHECK(num_classes > 0 && static_cast<std::size_t>(num_classes) <= logits.size());
  const auto classes = logits.first(static_cast<std::size_t>(num_classes));
  for (std::size_t i = 0; i < classes.size(); ++i)
    if (std::isnan(classes[i]) || classes[i] == std::numeric_limits<float>::infinity())
      throw InputError(fmt::format(
          "the model's logit of token {} is {}: its weights are damaged or its training diverged", i, classes[i]));
  const auto largest = std::max_element(classes.begin(), classes.end());
  if (options.temperature <= 0.0) return static_cast<std::int32_t>(largest - classes.begin());
  std::vector<double> cumulative(classes.size());
  double sum = 0.0;
  for (std::size_t i = 0; i < classes.size(); ++i) {
    sum += std::exp((static_cast<double>(classes[i]) - static_cast<double>(*largest)) / options.temperature);
    cumulative[i] = sum;
  }
  const double point = philox_uniform(philox_key(options.seed, "generate"), static_cast<std::uint64_t>(index)) * sum;
  // The product can round up to the sum itself; then the last class that has any probability is meant.
  auto chosen = std::upper_bound(cumulative.begin(), cumulative.end(), point);
  if (chosen == cumulative.end()) chosen = std::lower_bound(cumulative.begin(), cumulative.end(), sum);
  return static_cast<std::int32_t>(chosen - cumulative.begin());
}

GenerationEnd generate_text(LoadedModel& model, const std::string& prompt, std::int64_t max_tokens,
                            const SamplingOptions& options, const std::function<void(const std::string&)>& emit) {
  const Tokenizer& tokenizer = model.tokenizer();
  std::vector<std::int32_t> tokens(tokenizer.before_document().begin(), tokenizer.before_document().end());
  const std::vector<std::int32_t> written = tokenizer.encode(prompt);
  tokens.insert(tokens.end(), written.begin(), written.end());
  if (tokens.empty()) {
    if (!tokenizer.end_of_document())
      throw UserError("--prompt: an empty prompt needs a tokenizer with an end-of-document token to start from");
    tokens.push_back(*tokenizer.end_of_document());
  }
  const std::int64_t context = model.transformer().spec().context;
  if (static_cast<std::int64_t>(tokens.size()) >= context)
    throw UserError(fmt::format("--prompt: {} tokens leave no room in the model's context of {}; shorten it",
                                tokens.size(), context));
  const std::int64_t classes = std::min(tokenizer.vocab_size(), model.transformer().spec().vocab);
  Decoder decoder(model.transformer(), model.backend(), model.stream(), model.store(), context);
  auto logits = decoder.append(tokens);
  for (std::int64_t i = 0; i < max_tokens; ++i) {
    const std::int32_t token = sample_token(logits, classes, options, i);
    if (tokenizer.end_of_document() && token == *tokenizer.end_of_document()) return GenerationEnd::end_of_document;
    emit(tokenizer.decode(std::span(&token, 1)));
    if (i + 1 == max_tokens) break;
    if (decoder.length() >= context) return GenerationEnd::context_full;
    logits = decoder.append(std::span(&token, 1));
  }
  return GenerationEnd::length;
}

}  // namespace scaletrain
