// The cases of every operation: at least 30 shapes each, among them 1, primes and powers of two with their neighbours.
#pragma once

#include <cmath>

#include "parity.h"

namespace scaletrain::parity {

std::vector<Case> linear_forward_cases();
std::vector<Case> linear_backward_input_cases();
std::vector<Case> linear_backward_weight_cases();
std::vector<Case> matrix_product_cases();
std::vector<Case> embedding_forward_cases();
std::vector<Case> embedding_backward_cases();
std::vector<Case> norm_forward_cases();
std::vector<Case> norm_backward_input_cases();
std::vector<Case> norm_backward_weight_cases();
std::vector<Case> activation_forward_cases();
std::vector<Case> activation_backward_cases();
std::vector<Case> rope_cases();
std::vector<Case> attention_forward_cases();
std::vector<Case> attention_backward_cases();
std::vector<Case> cross_entropy_cases();
std::vector<Case> softmax_statistics_cases();
std::vector<Case> cross_entropy_parts_cases();
std::vector<Case> embedding_part_forward_cases();
std::vector<Case> embedding_part_backward_cases();
std::vector<Case> add_cases();
std::vector<Case> dropout_cases();
std::vector<Case> scale_cases();
std::vector<Case> soft_cap_cases();
std::vector<Case> soft_cap_backward_cases();
std::vector<Case> copy_cases();
std::vector<Case> fill_cases();
std::vector<Case> sums_of_squares_cases();
std::vector<Case> adamw_cases();
std::vector<Case> block_adamw_cases();
std::vector<Case> sgd_cases();
std::vector<Case> momentum_cases();
std::vector<Case> lion_cases();
std::vector<Case> ademamix_cases();
std::vector<Case> adam_direction_cases();
std::vector<Case> momentum_direction_cases();
std::vector<Case> scale_spans_cases();
std::vector<Case> matrix_squares_cases();
std::vector<Case> factored_direction_cases();
std::vector<Case> rms_direction_cases();
std::vector<Case> average_cases();
std::vector<Case> swap_cases();

// Of the loss of every case with another index: smoothed labels, the z-loss, or both.
inline LossShape shape_of_case(std::size_t index) {
  return {.label_smoothing = index % 3 == 0 ? 0.0 : 0.125, .z_loss = index % 3 == 1 ? 0.0 : 0.01};
}
// How much the z-loss may make of what the softmax is otherwise.
inline double weight_of(const LossShape& shape, double log_z) {
  return 1.0 + 2.0 * shape.z_loss * std::fabs(log_z);
}

struct CasesOfOperation {
  const char* name;
  std::vector<Case> (*cases)();
};
// Of every operation that there is.
const std::vector<CasesOfOperation>& all_cases();

// [rows, columns] for what works on rows.
struct Extent {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};
std::vector<Extent> row_extents();
// For what works on elements.
std::vector<std::int64_t> lengths();

}  // namespace scaletrain::parity
