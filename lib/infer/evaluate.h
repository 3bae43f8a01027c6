// The loss of a model on a validation set: the mean over its unmasked tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "data/dataset.h"
#include "infer/model.h"
#include "infer/stage_memory.h"

namespace scaletrain {

struct EvaluationResult {
  double loss = 0.0;        // nats per token
  std::int64_t tokens = 0;  // unmasked targets
  // Of the text that these tokens stand for, special ones for nothing; nothing where tokens have no text.
  std::optional<std::int64_t> bytes;

  // The sum of the losses over the text's bytes, in bits: comparable between tokenizers.
  std::optional<double> bits_per_byte() const;
};

// The length of each token's text; nothing where a tokenizer has none (ids). Byte-level BPE's tokens make any text up
// of theirs; what a tokenizer changes before (NFC, U+FFFD in place of what is no UTF-8) counts as changed.
std::optional<std::vector<std::int64_t>> bytes_of_tokens(const Tokenizer& tokenizer);

// num_samples: the first so many of the set, at least one; the model's context is the set's. `progress` is called with
// (done, all) before the first micro-batch and after each. micro_batch is clamped to the samples there are.
EvaluationResult evaluate_model(LoadedModel& model, const ValidationSet& set, std::int64_t num_samples,
                                std::int64_t micro_batch,
                                const std::function<void(std::int64_t done, std::int64_t all)>& progress);

// One micro-batch through all units; what it comes to is added where the batch says. memory: of make_forward_plan().
void forward_all(LoadedModel& model, const StageMemory& memory, const BatchContext& batch);

}  // namespace scaletrain
