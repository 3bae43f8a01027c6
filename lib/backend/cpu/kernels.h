// The vectorised kernels of one instruction set, as a table of functions. One body (kernels_body.inc) is compiled once
// per set; the backend picks a table at run time. Kernels know no threads: they work on the piece of an operation that
// they are given.
//
// This header is read by sources that are compiled for processors newer than the one at hand. They must not emit code
// of shared inline functions, which the linker might pick for everybody: so no standard headers with templates here.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace scaletrain::cpu {

// Rows of a matrix with a distance in elements between rows.
struct Rows {
  float* data;
  ptrdiff_t stride;
};
struct ConstRows {
  const float* data;
  ptrdiff_t stride;
};

struct NormRows {
  const float* input;
  const float* weight;
  const float* bias;  // or null
  float* output;
  float* mean;  // null: rmsnorm
  float* rstd;
  size_t rows;
  size_t columns;
  double epsilon;
};

struct NormBackwardRows {
  const float* d_output;
  const float* input;
  const float* weight;
  const float* mean;  // null: rmsnorm
  const float* rstd;
  const float* addend;  // or null
  float* d_input;
  size_t rows;
  size_t columns;
};

// Columns [first, last) of all rows.
struct NormWeightColumns {
  const float* d_output;
  const float* input;
  const float* mean;  // null: rmsnorm
  const float* rstd;
  size_t rows;
  size_t columns;
  size_t first;
  size_t last;
  float* d_weight;
  float* d_bias;  // or null
};

// One block of scores of attention: `rows` queries against `columns` keys. Query r sees columns [first[r], last[r]) of
// the block, which may be none. Columns outside become zero.
struct ScoreBlock {
  float* scores;
  ptrdiff_t stride;
  size_t rows;
  size_t columns;
  const int32_t* first;
  const int32_t* last;
};

// State of the online softmax (Milakov and Gimelshein 2018), a value per query: the maximum so far and the sum of
// exp(score - maximum).
struct OnlineSoftmax {
  float* maximum;
  float* sum;
};

struct RopeRows {
  float* values;
  ptrdiff_t row_stride;
  size_t rows;
  size_t heads;
  size_t half;  // D / 2
  const int32_t* positions;
  const double* frequencies;  // [D / 2]
  float direction;            // 1, or -1 for the inverse
};

struct AdamWScalars {
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float gradient_scale;
  float inverse_correction1, inverse_correction2;
  float epsilon;
  float learning_rate;
  float weight_decay;
};

struct Kernels {
  const char* name;

  void (*add)(const float* a, const float* b, float* output, size_t count);
  void (*fill)(float* output, float value, size_t count);
  double (*sum_of_squares)(const float* values, size_t count);

  // output += bias (or null, one per column) + addend (or null).
  void (*add_to_rows)(Rows output, const float* bias, ConstRows addend, size_t rows, size_t columns);
  // sums[first..last) += column sums of the rows.
  void (*add_column_sums)(ConstRows input, size_t rows, size_t first, size_t last, float* sums);
  // output[i] = scale * (vector · row i), `length` elements each.
  void (*dot_rows)(const float* vector, ConstRows matrix, size_t rows, size_t length, float scale, float* output);
  // output[0..length) = (first ? 0 : output) + sum over rows of weights[i] * row i.
  void (*weighted_row_sum)(const float* weights, ConstRows matrix, size_t rows, size_t length, int first,
                           float* output);
  // output[i] = a row i · b row i.
  void (*row_dots)(ConstRows a, ConstRows b, size_t rows, size_t length, float* output);

  void (*gelu_forward)(const float* input, float* output, size_t count);
  void (*gelu_backward)(const float* input, const float* d_output, float* d_input, size_t count);
  void (*gelu_tanh_forward)(const float* input, float* output, size_t count);
  void (*gelu_tanh_backward)(const float* input, const float* d_output, float* d_input, size_t count);
  void (*swiglu_forward)(const float* gate, const float* up, float* output, size_t count);
  void (*swiglu_backward)(const float* gate, const float* up, const float* d_output, float* d_gate, float* d_up,
                          size_t count);

  void (*norm_forward)(const NormRows& rows);
  void (*norm_backward_input)(const NormBackwardRows& rows);
  void (*norm_backward_weight)(const NormWeightColumns& columns);

  void (*rope)(const RopeRows& rows);

  // Scores become exp(score - new maximum); the state moves on; rows of `output` are multiplied by exp(old - new
  // maximum) unless null.
  void (*softmax_forward)(const ScoreBlock& block, const OnlineSoftmax& state, Rows output, size_t output_columns);
  // output rows /= sum; log_sum_exp (or null) = maximum + log(sum).
  void (*softmax_finish)(const OnlineSoftmax& state, size_t rows, Rows output, size_t output_columns,
                         float* log_sum_exp);
  // scores become P = exp(score - log_sum_exp); d_probabilities (same layout) become scale · P · (dP - delta).
  void (*softmax_backward)(const ScoreBlock& block, const float* log_sum_exp, const float* delta, float scale,
                           float* d_probabilities);

  // -log softmax(logits)[target]; with write_gradient the logits become d_scale · (softmax - onehot(target)).
  double (*cross_entropy_row)(float* logits, size_t columns, size_t target, double d_scale, int write_gradient);
  // The sum of exp(value - *maximum), where *maximum becomes the largest value.
  double (*softmax_statistics_row)(const float* values, size_t columns, float* maximum);
  // values -> factor · exp(value - shift).
  void (*softmax_row)(float* values, size_t columns, float shift, float factor);

  void (*adamw)(float* param, float* first_moment, float* second_moment, const float* gradient, size_t count,
                const AdamWScalars& scalars);
  void (*sgd)(float* param, const float* gradient, size_t count, float gradient_scale, float learning_rate,
              float weight_decay);
};

const Kernels& kernels_portable();
const Kernels& kernels_avx2();
const Kernels& kernels_avx512();

}  // namespace scaletrain::cpu
