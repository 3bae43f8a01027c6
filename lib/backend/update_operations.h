// The operations of an update, of those that operations.h lists: sums over gradients, the steps of optimizers,
// averages. What is said there of element types, and of descriptors that are equal, holds here.
#pragma once

#include <cstdint>
#include <span>
#include <variant>

#include "tensor/view.h"

namespace scaletrain {

// A contiguous range of elements of a flat buffer.
struct ElementSpan {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// results[s] = the sum of squares of the elements of spans[s], accumulated in double over blocks of fixed size in
// order: the same bits for any number of threads, and whatever the other spans are. Spans ascend and do not overlap;
// that of no elements has the sum 0.
struct SumsOfSquares {
  ConstView values;  // [n], f32 or the compute type
  std::span<const ElementSpan> spans;
  View results;  // [number of spans] f64
};

// What kernels read of a step at the moment they run, so that no step waits for the host: in memory of the device, as a
// record of f64 in this order.
struct StepScalars {
  double learning_rate = 0;
  double gradient_scale = 1;    // 1 / unmasked tokens, times the clipping factor
  double bias_correction1 = 1;  // 1 - beta1^t
  double bias_correction2 = 1;  // 1 - beta2^t
  double skip = 0;              // non-zero: the update leaves everything as it is
  double slow_beta = 0;         // AdEMAMix: decay of the slow mean at this update
  double slow_weight = 0;       // AdEMAMix: its weight at this update
};
inline constexpr std::int64_t num_step_scalars = 7;
static_assert(sizeof(StepScalars) == num_step_scalars * sizeof(double));

// A contiguous range of elements of a flat buffer with one weight decay and one factor on the learning rate.
struct UpdateSpan {
  std::int64_t first = 0;
  std::int64_t count = 0;
  double weight_decay = 0;
  double rate_factor = 1;
};

// AdamW with decoupled decay (Loshchilov and Hutter 2019), element by element, in f32 (f64 in the f64 reference):
//   g = gradient · gradient_scale; m = β1·m + (1-β1)·g; v = β2·v + (1-β2)·g²
//   p = p - lr·(m/(1-β1ᵗ) / (sqrt(v/(1-β2ᵗ)) + ε) + decay·p), lr = learning_rate · rate_factor
struct AdamWStep {
  View param, first_moment, second_moment;  // [n]
  ConstView gradient;                       // [n]
  std::span<const UpdateSpan> spans;        // elements outside every span are padding and stay as they are
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  ConstView step;             // StepScalars, [7] f64
  View compute_weights = {};  // [n], optional, compute type: the updated params, rounded in the same pass
};

// AdamW whose moments are kept in 8 bits between steps, in blocks (moment_codes.h): each is read, updated as AdamWStep
// has it, and rounded to codes behind the update of the params, which sees it unrounded.
struct BlockAdamWStep {
  View param;                         // [n], whole blocks
  View first_codes, second_codes;     // [n] u8
  View first_scales, second_scales;   // [n / block], master type
  ConstView gradient;                 // [n]
  std::span<const UpdateSpan> spans;  // of whole blocks each
  std::int64_t block = 256;           // elements: a power of two from 16 to 256
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  ConstView step;             // StepScalars, [7] f64
  View compute_weights = {};  // as above
};

// How a step of SGD uses what it remembers, with d = g + decay·p and g, lr as above:
//   none       p = p - lr·d
//   classical  b = μ·b + d; p = p - lr·b             (PyTorch's SGD with dampening 0)
//   nesterov   b = μ·b + d; p = p - lr·(d + μ·b)     (PyTorch's)
//   scaled     b = μ·b + lr·d; p = p - b             (LARS, You et al. 2017: the rate is inside)
enum class MomentumForm { none, classical, nesterov, scaled };

struct SgdStep {
  View param;  // [n]
  ConstView gradient;
  std::span<const UpdateSpan> spans;
  ConstView step;             // StepScalars, [7] f64
  View compute_weights = {};  // as above
  MomentumForm form = MomentumForm::none;
  View momentum_buffer = {};  // b, [n]; empty with none
  double momentum = 0;        // μ
};

// Lion (Chen et al. 2023), with g and lr as above:
//   c = β1·m + (1-β1)·g; p = p - lr·(sign(c) + decay·p); m = β2·m + (1-β2)·g. The sign of 0 is 0.
struct LionStep {
  View param, momentum;  // [n]
  ConstView gradient;    // [n]
  std::span<const UpdateSpan> spans;
  double beta1 = 0.9, beta2 = 0.95;
  ConstView step;             // StepScalars, [7] f64
  View compute_weights = {};  // as above
};

// AdEMAMix (Pagliardini et al. 2024): AdamW whose direction has a slow mean of the gradient too, with g and lr as
// above, and β3 = slow_beta, α = slow_weight of the step:
//   m1 = β1·m1 + (1-β1)·g; m2 = β3·m2 + (1-β3)·g; v = β2·v + (1-β2)·g²
//   p = p - lr·((m1/(1-β1ᵗ) + α·m2) / (sqrt(v/(1-β2ᵗ)) + ε) + decay·p)
struct AdemamixStep {
  View param, first_moment, slow_moment, second_moment;  // [n]
  ConstView gradient;                                    // [n]
  std::span<const UpdateSpan> spans;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  ConstView step;             // StepScalars, [7] f64
  View compute_weights = {};  // as above
};

// The moments of AdamW and its direction, in place of the gradient, for an optimizer that has yet to measure how long
// it is (LAMB, You et al. 2020); params stay as they are:
//   m, v as AdamWStep has them; gradient = m/(1-β1ᵗ) / (sqrt(v/(1-β2ᵗ)) + ε) + decay·p
struct AdamDirection {
  ConstView param;                             // [n]
  View gradient, first_moment, second_moment;  // [n]
  std::span<const UpdateSpan> spans;           // their factors on the rate are not used
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  ConstView step;  // StepScalars, [7] f64
};

// The mean of gradients that Muon steps along (Jordan et al. 2024), kept and, in place of the gradient, made its
// direction, for an optimizer that has yet to orthogonalise it; with g as above:
//   m = β·m + (1-β)·g; gradient = m, with Nesterov's momentum β·m + (1-β)·g
struct MomentumDirection {
  View gradient, momentum;            // [n]
  std::span<const UpdateSpan> spans;  // their decay and factors are not used
  double beta = 0.95;
  bool nesterov = false;
  ConstView step;  // StepScalars, [7] f64
};

// values = factor · values, with the factor on the rate of each element's span.
struct ScaleSpans {
  View values;  // [n], of the master type
  std::span<const UpdateSpan> spans;
};

// Sums of squares by rows and by columns of a part of a matrix that is contiguous in row-major order, each in double
// and in an order that follows from the part alone: the same bits for any number of threads.
struct MatrixSquares {
  ConstView values;               // [n], of the master type
  std::int64_t first_column = 0;  // that values[0] lies in
  View rows;                      // [number of rows that the part touches] f64
  View columns;                   // [number of columns of the matrix] f64
};

// Of Adafactor (Shazeer and Stern 2018), for a part of a matrix as MatrixSquares has it: the gradient over the root of
// its second moment, whose estimate is a product of a row's and a column's, in the gradient's place:
//   gradient = g · min(rows[i]·columns[j], largest), with g as above
struct FactoredDirection {
  View gradient;                  // [n]
  std::int64_t first_column = 0;  // that gradient[0] lies in
  ConstView rows;                 // [number of rows that the part touches], master type, at least 0
  ConstView columns;              // [number of columns of the matrix], master type, at least 0
  double largest = 1e30;
  ConstView step;  // StepScalars, [7] f64
};

// The same where the second moment is kept whole, of vectors:
//   v = (1-weight)·v + weight·g²; gradient = g / max(sqrt(v), smallest)
struct RmsDirection {
  View gradient, second_moment;       // [n]
  std::span<const UpdateSpan> spans;  // their decay and factors are not used
  double weight = 1;                  // of the new square, in (0, 1]
  double smallest = 1e-30;
  ConstView step;  // StepScalars, [7] f64
};

// average = average + (1 - decay)·(param - average), element by element, in f32 (f64 in the f64 reference): with decay
// 0 it is the param, where the average is 0.
struct AverageStep {
  View average;     // [n]
  ConstView param;  // [n]
  double decay = 0.999;
  bool operator==(const AverageStep&) const = default;
};

// a and b change places. Of the master type.
struct Swap {
  View a, b;  // [n]
  bool operator==(const Swap&) const = default;
};

// The list of all operations (operations.h) ends with these. A new one of an update joins here.
template <class... Others>
using WithUpdates =
    std::variant<Others..., SumsOfSquares, AdamWStep, SgdStep, LionStep, AdemamixStep, AdamDirection, MomentumDirection,
                 ScaleSpans, MatrixSquares, FactoredDirection, RmsDirection, AverageStep, Swap, BlockAdamWStep>;

}  // namespace scaletrain
