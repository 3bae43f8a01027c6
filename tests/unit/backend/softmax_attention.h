// Attention by the textbook: whole matrices of scores and probabilities, softmax's derivative by its definition.
// Operands are logical, [B,T,heads,D].
#pragma once

#include "parity.h"

namespace scaletrain::parity {

struct AttentionProblem {
  AttentionShape shape;
  Values query, key, value, d_output;
  Ids document_start;  // empty: no document bounds
  // Of probabilities, before they weigh values.
  double dropout = 0.0;
  PhiloxKey dropout_key{};
  std::vector<std::int64_t> samples{};
  std::int64_t first_head = 0;
};

struct AttentionResult {
  Values output, log_sum_exp;
  Values d_query, d_key, d_value;
  // Root of the sum of the squared terms of each element.
  Values output_scale, d_query_scale, d_key_scale, d_value_scale;
};

// The problem's as descriptors have it; nothing where nothing is dropped.
AttentionDropout dropout_of(Device& device, const AttentionProblem& problem);

AttentionResult softmax_attention(const AttentionProblem& problem);

}  // namespace scaletrain::parity
