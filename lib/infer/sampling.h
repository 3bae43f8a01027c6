// Choosing the next token from logits.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "infer/model.h"

namespace scaletrain {

struct SamplingOptions {
  double temperature = 1.0;  // 0: greedy
  std::uint64_t seed = 0;
};

// Token `index` of a text: a pure function of (logits, options, index), so that equal seeds give equal texts. Only the
// first `num_classes` logits take part (a model's vocabulary may be larger than its tokenizer's). Greedy takes the
// lowest id among equals.
std::int32_t sample_token(std::span<const float> logits, std::int64_t num_classes, const SamplingOptions& options,
                          std::int64_t index);

// Why generation ended.
enum class GenerationEnd { length, end_of_document, context_full };

// Encodes the prompt, then calls `emit` with the text of each new token, at most max_tokens times: bytes, of which
// several tokens may make one character. The prompt begins as a document does; an empty one where a document begins
// with nothing starts behind an end-of-document token, and without one in the tokenizer it is a UserError, as is a
// prompt that leaves no room in the context.
GenerationEnd generate_text(LoadedModel& model, const std::string& prompt, std::int64_t max_tokens,
                            const SamplingOptions& options, const std::function<void(const std::string&)>& emit);

}  // namespace scaletrain
