// The vectorised kernels of one instruction set, as a table of functions. One body (kernels_body.inc) is compiled once
// per set; the backend picks a table at run time. Kernels know no threads: they work on the piece of an operation that
// they are given.
//
// S is the type of activations and of the weights that are read: float, Bf16 or F16. Arithmetic, sums, statistics and
// masters are f32 or better whatever it is.
//
// This header is read by sources that are compiled for processors newer than the one at hand. They give their functions
// away in constant tables alone, so that none of their code runs before the processor is known to have its
// instructions; and they must not emit code of shared inline functions, which the linker might pick for everybody: so
// no standard headers with templates here. tests/instructions_test.sh looks at what they define.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "tensor/halves.h"

namespace scaletrain::cpu {

// Rows of a matrix with a distance in elements between rows.
template <class S>
struct RowsOf {
  S* data;
  ptrdiff_t stride;
};
using Rows = RowsOf<float>;
using ConstRows = RowsOf<const float>;

template <class S>
struct NormRows {
  const S* input;
  const S* weight;
  const S* bias;  // or null
  S* output;
  float* mean;  // null: rmsnorm
  float* rstd;
  size_t rows;
  size_t columns;
  double epsilon;
  float weight_offset;  // what the weight is more than what is stored
};

template <class S>
struct NormBackwardRows {
  const S* d_output;
  const S* input;
  const S* weight;
  const float* mean;  // null: rmsnorm
  const float* rstd;
  const S* addend;  // or null
  S* d_input;
  size_t rows;
  size_t columns;
  float weight_offset;
};

// Columns [first, last) of all rows.
template <class S>
struct NormWeightColumns {
  const S* d_output;
  const S* input;
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

template <class S>
struct RopeRows {
  S* values;
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
  // Of AdEMAMix alone.
  float slow_beta = 0.0F, one_minus_slow_beta = 0.0F, slow_weight = 0.0F;
};

// b = momentum·b + into_buffer·d, p = p - (of_direction·d + of_buffer·b), d = g·gradient_scale + weight_decay·p: what
// every form of momentum is.
struct MomentumScalars {
  float gradient_scale;
  float weight_decay;
  float momentum;
  float into_buffer;
  float of_direction, of_buffer;
};

struct LionScalars {
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float gradient_scale;
  float learning_rate;
  float weight_decay;
};

template <class S>
struct TypedKernels {
  void (*add)(const S* a, const S* b, S* output, size_t count);
  void (*fill)(S* output, float value, size_t count);
  double (*sum_of_squares)(const S* values, size_t count);
  // sums += values.
  void (*add_to_sums)(const S* values, float* sums, size_t count);
  void (*to_floats)(const S* input, float* output, size_t count);
  void (*from_floats)(const float* input, S* output, size_t count);
  // output = sums + bias (or null, one per column) + addend_factor · addend (or null; may be the output).
  void (*finish_rows)(ConstRows sums, const S* bias, RowsOf<const S> addend, float addend_factor, RowsOf<S> output,
                      size_t rows, size_t columns);
  // sums[first..last) += column sums of the rows.
  void (*add_column_sums)(RowsOf<const S> input, size_t rows, size_t first, size_t last, float* sums);
  // output[i] = scale * (vector · row i), `length` elements each.
  void (*dot_rows)(const S* vector, RowsOf<const S> matrix, size_t rows, size_t length, float scale, float* output);

  void (*gelu_forward)(const S* input, S* output, size_t count);
  void (*gelu_backward)(const S* input, const S* d_output, S* d_input, size_t count);
  void (*gelu_tanh_forward)(const S* input, S* output, size_t count);
  void (*gelu_tanh_backward)(const S* input, const S* d_output, S* d_input, size_t count);
  void (*swiglu_forward)(const S* gate, const S* up, S* output, size_t count);
  void (*swiglu_backward)(const S* gate, const S* up, const S* d_output, S* d_gate, S* d_up, size_t count);
  void (*geglu_forward)(const S* gate, const S* up, S* output, size_t count);
  void (*geglu_backward)(const S* gate, const S* up, const S* d_output, S* d_gate, S* d_up, size_t count);

  void (*scale)(const S* input, S* output, size_t count, float factor);
  // output = (word < threshold ? 0 : factor · input) + addend (or null); the output may be either of them.
  void (*drop)(const uint32_t* words, uint32_t threshold, float factor, const S* input, const S* addend, S* output,
               size_t count);
  // cap · tanh(input / cap).
  void (*soft_cap)(const S* input, S* output, size_t count, float cap);
  void (*soft_cap_backward)(const S* input, const S* d_output, S* d_input, size_t count, float cap);

  void (*norm_forward)(const NormRows<S>& rows);
  void (*norm_backward_input)(const NormBackwardRows<S>& rows);
  void (*norm_backward_weight)(const NormWeightColumns<S>& columns);

  void (*rope)(const RopeRows<S>& rows);

  // -log softmax(logits)[target]; with write_gradient the logits become d_scale · (softmax - onehot(target)). row: room
  // for as many floats, in which halves keep their exponentials, or null: then they are computed twice. Floats keep
  // theirs in the logits.
  double (*cross_entropy_row)(S* logits, size_t columns, size_t target, double d_scale, int write_gradient, float* row);
  // The sum of exp(value - *maximum), where *maximum becomes the largest value.
  double (*softmax_statistics_row)(const S* values, size_t columns, float* maximum);
  // values -> factor · exp(value - shift), that of column `target` (unless negative) less `subtract`.
  void (*softmax_row)(S* values, size_t columns, float shift, float factor, ptrdiff_t target, float subtract);
  // The same, of which every other column is less `offset`.
  void (*offset_softmax_row)(S* values, size_t columns, float shift, float factor, float offset, ptrdiff_t target,
                             float subtract);

  // compute_weights (or null) become the updated params.
  void (*adamw)(float* param, float* first_moment, float* second_moment, const float* gradient, S* compute_weights,
                size_t count, const AdamWScalars& scalars);
  void (*sgd)(float* param, const float* gradient, S* compute_weights, size_t count, float gradient_scale,
              float learning_rate, float weight_decay);
  void (*sgd_with_momentum)(float* param, float* buffer, const float* gradient, S* compute_weights, size_t count,
                            const MomentumScalars& scalars);
  void (*lion)(float* param, float* momentum, const float* gradient, S* compute_weights, size_t count,
               const LionScalars& scalars);
  void (*ademamix)(float* param, float* first_moment, float* slow_moment, float* second_moment, const float* gradient,
                   S* compute_weights, size_t count, const AdamWScalars& scalars);
  // The gradient becomes the direction.
  void (*adam_direction)(const float* param, float* gradient, float* first_moment, float* second_moment, size_t count,
                         const AdamWScalars& scalars);
};

struct Kernels {
  const char* name;

  // output += bias (or null, one per column) + addend (or null).
  void (*add_to_rows)(Rows output, const float* bias, ConstRows addend, size_t rows, size_t columns);
  // output[0..length) = (first ? 0 : output) + sum over rows of weights[i] * row i.
  void (*weighted_row_sum)(const float* weights, ConstRows matrix, size_t rows, size_t length, int first,
                           float* output);
  // output[i] = a row i · b row i.
  void (*row_dots)(ConstRows a, ConstRows b, size_t rows, size_t length, float* output);

  // What softmax_forward and softmax_backward get where scores are capped, from scores that are not: what queries see
  // of a block becomes cap · tanh(score / cap) and, of the backward, d_probabilities become what makes of P · (dP -
  // delta) the gradient of the scores before they were capped.
  void (*cap_scores)(const ScoreBlock& block, float cap);
  void (*cap_scores_backward)(const ScoreBlock& block, const float* delta, float cap, float* d_probabilities);
  // Scores become exp(score - new maximum); the state moves on; rows of `output` are multiplied by exp(old - new
  // maximum) unless null.
  void (*softmax_forward)(const ScoreBlock& block, const OnlineSoftmax& state, Rows output, size_t output_columns);
  // output rows /= sum; log_sum_exp (or null) = maximum + log(sum).
  void (*softmax_finish)(const OnlineSoftmax& state, size_t rows, Rows output, size_t output_columns,
                         float* log_sum_exp);
  // scores become P = exp(score - log_sum_exp); d_probabilities (same layout) become scale · P · (dP - delta).
  void (*softmax_backward)(const ScoreBlock& block, const float* log_sum_exp, const float* delta, float scale,
                           float* d_probabilities);

  TypedKernels<float> f32;
  TypedKernels<Bf16> bf16;
  TypedKernels<F16> f16;
};

extern const Kernels kernels_portable;
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx512;

}  // namespace scaletrain::cpu
