// Choosing the next token from logits: what Hugging Face's `generate` does with them, in its order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/numbers/philox.h"

namespace scaletrain {

// Each as Hugging Face's LogitsProcessor of that name, applied in the order in which they stand here.
struct SamplingOptions {
  // Of tokens that the text already has, the prompt's included: a positive logit is divided by it, a negative one
  // multiplied (Keskar et al. 2019). 1: none.
  double repetition_penalty = 1.0;
  double temperature = 1.0;  // logits are divided by it; 0: greedy, and what follows has no effect
  std::int64_t top_k = 0;    // only so many of the largest, and those equal to the least of them; 0: all
  // Of the likeliest the fewest whose probabilities make this sum (Holtzman et al. 2020), at least one; 1: all.
  double top_p = 1.0;
  double min_p = 0.0;  // only those at least so likely as this part of the likeliest (Nguyen et al. 2024); 0: all
  std::uint64_t seed = 0;
};

// How much of the choice each class has left: scores, of which the largest is 0, whose softmax is the distribution;
// -infinity: removed. Classes are the first num_classes logits: a model's vocabulary may be larger than its
// tokenizer's. InputError for a logit that is no number or infinity.
std::vector<double> process_logits(std::span<const float> logits, std::int64_t num_classes,
                                   const SamplingOptions& options, std::span<const std::int32_t> past);

// Whose token is chosen.
struct TokenPlace {
  std::int64_t index = 0;   // of the text's new tokens
  std::int64_t prompt = 0;  // which of the prompts
  std::int64_t sample = 0;  // which of a prompt's samples
};

// The stream of random numbers of one sample, by seed, prompt and sample alone.
PhiloxKey sample_key(std::uint64_t seed, const TokenPlace& place);

// A pure function of its arguments, so that equal seeds give equal texts. past: all tokens of the text so far. Greedy
// takes the lowest id among equals.
std::int32_t sample_token(std::span<const float> logits, std::int64_t num_classes, const SamplingOptions& options,
                          const TokenPlace& place, std::span<const std::int32_t> past = {});

// log p(token) of the model itself: of the softmax over the classes' logits as they are.
double log_probability(std::span<const float> logits, std::int64_t num_classes, std::int32_t token);

}  // namespace scaletrain
