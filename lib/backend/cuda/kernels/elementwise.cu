// What reads and writes each element once: activations, rotary embedding, sums, copies.
#include <cmath>
#include <type_traits>

#include "backend/cuda/kernels/dropout.h"
#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/kernels/launching.h"

namespace scaletrain::cuda {

namespace {

// --- activations ---

struct Gelu {
  static __device__ float value(float x) { return 0.5F * x * (1.0F + erff(x * 0.70710678118654752F)); }
  static __device__ float derivative(float x) {
    const float cumulative = 0.5F * (1.0F + erff(x * 0.70710678118654752F));
    return cumulative + x * 0.39894228040143268F * expf(-0.5F * x * x);
  }
};

struct GeluTanh {
  static constexpr float scale = 0.79788456080286536F;  // sqrt(2 / pi)
  static constexpr float cubic = 0.044715F;
  static __device__ float value(float x) { return 0.5F * x * (1.0F + tanhf(scale * (x + cubic * x * x * x))); }
  static __device__ float derivative(float x) {
    const float t = tanhf(scale * (x + cubic * x * x * x));
    return 0.5F * (1.0F + t) + 0.5F * x * (1.0F - t * t) * scale * (1.0F + 3.0F * cubic * x * x);
  }
};

// As SoftCap.
struct Cap {
  float cap;
  __device__ float value(float x) const { return cap * tanhf(x / cap); }
  __device__ float derivative(float x) const {
    const float t = tanhf(x / cap);
    return 1.0F - t * t;
  }
};

__device__ inline float logistic(float x) {
  return 1.0F / (1.0F + expf(-x));
}

// What multiplies the other half of a gated activation.
struct Silu {
  static __device__ float value(float x) { return x * logistic(x); }
  // d_output · up · derivative, for which all but the derivative is `factor`.
  static __device__ float backward(float x, float factor) {
    const float s = logistic(x);
    return factor * s * (1.0F + x * (1.0F - s));
  }
};
struct GeluTanhGate {
  static __device__ float value(float x) { return GeluTanh::value(x); }
  static __device__ float backward(float x, float factor) { return factor * GeluTanh::derivative(x); }
};

template <class S, int width, class Function>
__global__ void apply(const S* input, S* output, Function function, std::int64_t count) {
  const std::int64_t first = first_element<width>();
  if (first >= count) return;
  float x[width];
  load(input + first, count - first, x);
#pragma unroll
  for (int i = 0; i < width; ++i) x[i] = function.value(x[i]);
  store(output + first, count - first, x);
}

template <class S, int width, class Function>
__global__ void apply_backward(const S* input, const S* d_output, S* d_input, Function function, std::int64_t count) {
  const std::int64_t first = first_element<width>();
  if (first >= count) return;
  float x[width];
  float d[width];
  load(input + first, count - first, x);
  load(d_output + first, count - first, d);
#pragma unroll
  for (int i = 0; i < width; ++i) d[i] *= function.derivative(x[i]);
  store(d_input + first, count - first, d);
}

// A function of each element. The operation's input and output may be one.
template <class S, class Function>
void issue_function(const Issue& issue, const ConstView& from, const View& to, Function function) {
  const auto* input = address<S>(from);
  auto* output = address<S>(to);
  const std::int64_t count = to.num_elements();
  if (count == 0) return;
  with_width<S>(fits_packs<S>(0, input, output), [&](auto width) {
    launch(issue.stream, {blocks_for((count + width - 1) / width), threads_of_block}, apply<S, width, Function>, input,
           output, function, count);
  });
}

// Its derivative at each element of the input, times d_output. d_input may be either.
template <class S, class Descriptor, class Function>
void issue_derivative(const Issue& issue, const Descriptor& op, Function function) {
  const auto* input = address<S>(op.input);
  const auto* d_output = address<S>(op.d_output);
  auto* d_input = address<S>(op.d_input);
  const std::int64_t count = op.d_input.num_elements();
  if (count == 0) return;
  with_width<S>(fits_packs<S>(0, input, d_output, d_input), [&](auto width) {
    launch(issue.stream, {blocks_for((count + width - 1) / width), threads_of_block},
           apply_backward<S, width, Function>, input, d_output, d_input, function, count);
  });
}

// Where a thread's elements of a gated activation lie: `features` is a multiple of the width, or the width is 1.
struct GateAndUp {
  std::int64_t gate, up;
};
__device__ inline GateAndUp gate_and_up(std::int64_t element, std::int64_t features) {
  const std::int64_t row = element / features;
  const std::int64_t gate = element + row * features;
  return {gate, gate + features};
}

template <class S, int width, class Gate>
__global__ void activate_gated(const S* input, S* output, std::int64_t features, std::int64_t count) {
  const std::int64_t first = first_element<width>();
  if (first >= count) return;
  const GateAndUp at = gate_and_up(first, features);
  float gate[width];
  float up[width];
  load(input + at.gate, width, gate);
  load(input + at.up, width, up);
#pragma unroll
  for (int i = 0; i < width; ++i) up[i] *= Gate::value(gate[i]);
  store(output + first, width, up);
}

template <class S, int width, class Gate>
__global__ void activate_gated_backward(const S* input, const S* d_output, S* d_input, std::int64_t features,
                                        std::int64_t count) {
  const std::int64_t first = first_element<width>();
  if (first >= count) return;
  const GateAndUp at = gate_and_up(first, features);
  float gate[width];
  float up[width];
  float d[width];
  load(input + at.gate, width, gate);
  load(input + at.up, width, up);
  load(d_output + first, width, d);
#pragma unroll
  for (int i = 0; i < width; ++i) {
    const float d_gate = Gate::backward(gate[i], d[i] * up[i]);
    up[i] = d[i] * Gate::value(gate[i]);
    gate[i] = d_gate;
  }
  store(d_input + at.gate, width, gate);
  store(d_input + at.up, width, up);
}

// body(a function's type)
template <class Body>
void with_function(ActivationType type, Body&& body) {
  if (type == ActivationType::gelu)
    body(Gelu());
  else
    body(GeluTanh());
}

template <class Body>
void with_gate(ActivationType type, Body&& body) {
  if (type == ActivationType::swiglu)
    body(Silu());
  else
    body(GeluTanhGate());
}

// --- rotary embedding ---

// As scaled_frequency.
struct Scaling {
  double factor, low, high, turns;  // turns: of a frequency of one, in the original context
  explicit Scaling(const RopeScaling& scaling)
      : factor(scaling.factor),
        low(scaling.low_frequency_factor),
        high(scaling.high_frequency_factor),
        turns(scaling.original_context / (2.0 * 3.14159265358979323846)) {}
  __device__ double of(double frequency) const {
    if (factor == 1.0) return frequency;
    double kept = 0.0;
    if (turns > 0.0) {
      kept = (frequency * turns - low) / (high - low);
      kept = kept < 0.0 ? 0.0 : kept > 1.0 ? 1.0 : kept;
    }
    return frequency * (kept + (1.0 - kept) / factor);
  }
};

// A thread has `width` pairs of neighbouring dimensions of a row, in all heads: their sines and cosines are computed
// once. The angle grows with the position, so it is reduced to one turn in double. half, row_stride: multiples of the
// width.
template <class S, int width>
__global__ void rotate(S* values, std::int64_t row_stride, std::int64_t heads, int half, const std::int32_t* positions,
                       std::int64_t rows, float direction, double log2_theta, Scaling scaling) {
  const std::int64_t first = first_element<width>();
  const std::int64_t row = first / half;
  if (row >= rows) return;
  const auto d = static_cast<int>(first % half);
  constexpr double half_turns = 0.31830988618379067;  // 1 / pi
  float sine[width];
  float cosine[width];
#pragma unroll
  for (int i = 0; i < width; ++i) {
    const double angle = positions[row] * scaling.of(exp2(-log2_theta * (d + i) / half)) * half_turns;
    sincospif(static_cast<float>(angle - 2.0 * rint(0.5 * angle)), &sine[i], &cosine[i]);
    sine[i] *= direction;
  }
  // Of several heads, so that their loads are under way at once.
  constexpr int at_once = 2;
  S* place = values + row * row_stride + d;
  for (std::int64_t head = 0; head < heads; head += at_once, place += at_once * 2 * half) {
    float a[at_once][width];
    float b[at_once][width];
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      if (head + i >= heads) break;
      load(place + i * 2 * half, width, a[i]);
      load(place + i * 2 * half + half, width, b[i]);
    }
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      if (head + i >= heads) break;
#pragma unroll
      for (int j = 0; j < width; ++j) {
        const float low = a[i][j];
        a[i][j] = low * cosine[j] - b[i][j] * sine[j];
        b[i][j] = b[i][j] * cosine[j] + low * sine[j];
      }
      store(place + i * 2 * half, width, a[i]);
      store(place + i * 2 * half + half, width, b[i]);
    }
  }
}

// --- dropout ---

// Where rows and columns lie in the samples' matrices.
struct DropoutPlace {
  std::int64_t sample_rows, first_row, blocks_of_row, first_column;
};

// `packs` of a row's columns, each of `width`; a thread has one. Wider than 1: blocks lie within packs.
template <class S, int width>
__global__ void drop(const S* input, const S* addend, S* output, DroppedBy by, DropoutPlace place, std::int64_t rows,
                     std::int64_t packs, std::int64_t columns) {
  const std::int64_t item = first_element<1>();
  if (item >= rows * packs) return;
  const std::int64_t column = item % packs * width;
  const std::int64_t at = item / packs * columns + column;
  const std::int64_t row = place.first_row + item / packs;
  const std::int64_t sample = by.samples[row / place.sample_rows];
  const std::int64_t of_matrix = place.first_column + column;
  const std::int64_t block = row % place.sample_rows * place.blocks_of_row + of_matrix / 4;
  float x[width];
  load(input + at, columns - column, x);
  if constexpr (width == 1) {
    const std::uint32_t word = dropout_words(by, sample, block).at(static_cast<int>(of_matrix % 4));
    x[0] = word < by.threshold ? 0.0F : x[0] * by.factor;
  } else {
#pragma unroll
    for (int i = 0; i < width / 4; ++i) {
      const unsigned kept = kept_bits(by, dropout_words(by, sample, block + i));
#pragma unroll
      for (int e = 0; e < 4; ++e) x[i * 4 + e] = (kept >> e & 1U) != 0 ? x[i * 4 + e] * by.factor : 0.0F;
    }
  }
  if (addend != nullptr) {
    float of_addend[width];
    load(addend + at, columns - column, of_addend);
#pragma unroll
    for (int i = 0; i < width; ++i) x[i] += of_addend[i];
  }
  store(output + at, columns - column, x);
}

// --- sums, copies ---

template <class S, int width>
__global__ void add(const S* a, const S* b, S* output, std::int64_t count) {
  const std::int64_t first = first_element<width>();
  if (first >= count) return;
  float left[width];
  float right[width];
  load(a + first, count - first, left);
  load(b + first, count - first, right);
#pragma unroll
  for (int i = 0; i < width; ++i) left[i] += right[i];
  store(output + first, count - first, left);
}

template <class S>
void issue_add(const Issue& issue, const Add& op) {
  const auto* a = address<S>(op.a);
  const auto* b = address<S>(op.b);
  auto* output = address<S>(op.output);
  const std::int64_t count = op.output.num_elements();
  with_width<S>(fits_packs<S>(0, a, b, output), [&](auto width) {
    launch(issue.stream, {blocks_for((count + width - 1) / width), threads_of_block}, add<S, width>, a, b, output,
           count);
  });
}

// `packs` of a row's columns, each of `width`; a thread has one.
template <class S, int width>
__global__ void scale(const S* input, std::int64_t input_stride, S* output, std::int64_t output_stride,
                      std::int64_t rows, std::int64_t packs, std::int64_t columns, float factor) {
  const std::int64_t item = first_element<1>();
  if (item >= rows * packs) return;
  const std::int64_t row = item / packs;
  const std::int64_t column = item % packs * width;
  float values[width];
  load(input + row * input_stride + column, columns - column, values);
#pragma unroll
  for (int i = 0; i < width; ++i) values[i] *= factor;
  store(output + row * output_stride + column, columns - column, values);
}

// One rounding, whatever the types.
template <class To, class From>
__device__ To converted(From value) {
  if constexpr (std::is_same_v<To, From>)
    return value;
  else if constexpr (std::is_same_v<From, double> && std::is_same_v<To, __nv_bfloat16>)
    return __double2bfloat16(value);
  else if constexpr (std::is_same_v<From, double> && std::is_same_v<To, __half>)
    return __double2half(value);
  else if constexpr (std::is_same_v<From, double>)
    return static_cast<To>(value);
  else if constexpr (std::is_same_v<To, double>)
    return static_cast<double>(to_float(value));
  else
    return from_float<To>(to_float(value));
}

template <class To, class From, int width>
__global__ void convert(const From* input, To* output, std::int64_t count) {
  const std::int64_t first = first_element<width>();
  if (first + width <= count) {
    const Pack<From, width> from = *reinterpret_cast<const Pack<From, width>*>(input + first);
    Pack<To, width> to;
#pragma unroll
    for (int i = 0; i < width; ++i) to.values[i] = converted<To>(from.values[i]);
    *reinterpret_cast<Pack<To, width>*>(output + first) = to;
  } else {
    for (std::int64_t i = first; i < count; ++i) output[i] = converted<To>(input[i]);
  }
}

// body(an element of the type)
template <class Body>
void with_floating_type(DType type, Body&& body) {
  switch (type) {
    case DType::f64:
      return body(double());
    case DType::f32:
      return body(float());
    case DType::bf16:
      return body(__nv_bfloat16());
    case DType::f16:
      return body(__half());
    default:
      SCALETRAIN_CHECK(is_floating(type));
  }
}

template <class S, int width>
__global__ void fill(S* output, float value, std::int64_t count) {
  const std::int64_t first = first_element<width>();
  if (first >= count) return;
  float values[width];
#pragma unroll
  for (int i = 0; i < width; ++i) values[i] = value;
  store(output + first, count - first, values);
}

template <class S>
void issue_fill(const Issue& issue, const Fill& op) {
  auto* output = address<S>(op.output);
  const std::int64_t count = op.output.num_elements();
  with_width<S>(fits_packs<S>(0, output), [&](auto width) {
    launch(issue.stream, {blocks_for((count + width - 1) / width), threads_of_block}, fill<S, width>, output,
           static_cast<float>(op.value), count);
  });
}

}  // namespace

template <class S>
void compute(const Issue& issue, const ActivationForward& op) {
  const auto* input = address<S>(op.input);
  auto* output = address<S>(op.output);
  const std::int64_t count = op.output.num_elements();
  if (count == 0) return;
  if (is_gated(op.type)) {
    const std::int64_t features = op.output.shape()[1];
    with_gate(op.type, [&](auto gate) {
      with_width<S>(fits_packs<S>(features, input, output), [&](auto width) {
        launch(issue.stream, {blocks_for(count / width), threads_of_block}, activate_gated<S, width, decltype(gate)>,
               input, output, features, count);
      });
    });
    return;
  }
  with_function(op.type, [&](auto function) { issue_function<S>(issue, op.input, op.output, function); });
}

template <class S>
void compute(const Issue& issue, const ActivationBackward& op) {
  const auto* input = address<S>(op.input);
  const auto* d_output = address<S>(op.d_output);
  auto* d_input = address<S>(op.d_input);
  const std::int64_t count = op.d_output.num_elements();
  if (count == 0) return;
  if (is_gated(op.type)) {
    const std::int64_t features = op.d_output.shape()[1];
    with_gate(op.type, [&](auto gate) {
      with_width<S>(fits_packs<S>(features, input, d_output, d_input), [&](auto width) {
        launch(issue.stream, {blocks_for(count / width), threads_of_block},
               activate_gated_backward<S, width, decltype(gate)>, input, d_output, d_input, features, count);
      });
    });
    return;
  }
  with_function(op.type, [&](auto function) { issue_derivative<S>(issue, op, function); });
}

template <class S>
void compute(const Issue& issue, const RopeRotate& op) {
  const std::int64_t rows = op.positions.num_elements();
  const std::int64_t half = op.head_size / 2;
  if (rows == 0 || op.num_heads == 0 || half == 0) return;
  auto* values = address<S>(op.values);
  with_width<S>(fits_packs<S>(half, values) && fits_packs<S>(op.row_stride, values), [&](auto width) {
    launch(issue.stream, {blocks_for(rows * half / width), threads_of_block}, rotate<S, width>, values, op.row_stride,
           op.num_heads, static_cast<int>(half), address<std::int32_t>(op.positions), rows, op.inverse ? -1.0F : 1.0F,
           std::log2(op.theta), Scaling(op.scaling));
  });
}

template <class S>
void compute(const Issue& issue, const Add& op) {
  if (op.output.num_elements() == 0) return;
  if (op.output.dtype() == dtype_of_element<S>())
    issue_add<S>(issue, op);
  else
    issue_add<float>(issue, op);
}

template <class S>
void compute(const Issue& issue, const Dropout& op) {
  if (op.output.num_elements() == 0) return;
  const auto* input = address<S>(op.input);
  const auto* addend = address<S>(op.addend);
  auto* output = address<S>(op.output);
  const std::int64_t rows = op.input.shape()[0];
  const std::int64_t columns = op.input.shape()[1];
  const DropoutPlace place = {op.sample_rows, op.first_row, DropoutMask::first_block(1, op.columns), op.first_column};
  with_width<S>(fits_packs<S>(columns, input, addend, output) && op.first_column % 4 == 0, [&](auto width) {
    const std::int64_t packs = (columns + width - 1) / width;
    launch(issue.stream, {blocks_for(rows * packs), threads_of_block}, drop<S, width>, input, addend, output,
           dropped_by(op.mask), place, rows, packs, columns);
  });
}

template <class S>
void compute(const Issue& issue, const Scale& op) {
  if (op.output.num_elements() == 0) return;
  const auto* input = address<S>(op.input);
  auto* output = address<S>(op.output);
  const std::int64_t rows = op.input.shape()[0];
  const std::int64_t columns = op.input.shape()[1];
  const std::int64_t input_stride = op.input_row_stride();
  const std::int64_t output_stride = op.output_row_stride();
  const bool fits = fits_packs<S>(input_stride, input) && fits_packs<S>(output_stride, output);
  with_width<S>(fits, [&](auto width) {
    const std::int64_t packs = (columns + width - 1) / width;
    launch(issue.stream, {blocks_for(rows * packs), threads_of_block}, scale<S, width>, input, input_stride, output,
           output_stride, rows, packs, columns, static_cast<float>(op.factor));
  });
}

template <class S>
void compute(const Issue& issue, const SoftCap& op) {
  issue_function<S>(issue, op.input, op.output, Cap{static_cast<float>(op.cap)});
}

template <class S>
void compute(const Issue& issue, const SoftCapBackward& op) {
  issue_derivative<S>(issue, op, Cap{static_cast<float>(op.cap)});
}

template <class S>
void compute(const Issue& issue, const Copy& op) {
  if (op.output.num_bytes() == 0) return;
  if (op.input.dtype() == op.output.dtype()) {
    check(cudaMemcpyAsync(op.output.data(), op.input.data(), op.output.num_bytes(), cudaMemcpyDefault, issue.stream),
          "a copy");
    return;
  }
  const std::int64_t count = op.output.num_elements();
  with_floating_type(op.input.dtype(), [&](auto from) {
    with_floating_type(op.output.dtype(), [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      using Wider = std::conditional_t<(sizeof(From) > sizeof(To)), From, To>;
      const auto* input = address<From>(op.input);
      auto* output = address<To>(op.output);
      with_width<Wider>(fits_packs<Wider>(0, input, output), [&](auto width) {
        launch(issue.stream, {blocks_for((count + width - 1) / width), threads_of_block}, convert<To, From, width>,
               input, output, count);
      });
    });
  });
}

template <class S>
void compute(const Issue& issue, const Fill& op) {
  if (op.output.num_elements() == 0) return;
  if (op.output.dtype() == dtype_of_element<S>())
    issue_fill<S>(issue, op);
  else
    issue_fill<float>(issue, op);
}

SCALETRAIN_FOR_COMPUTE_TYPES(ActivationForward)
SCALETRAIN_FOR_COMPUTE_TYPES(ActivationBackward)
SCALETRAIN_FOR_COMPUTE_TYPES(RopeRotate)
SCALETRAIN_FOR_COMPUTE_TYPES(Add)
SCALETRAIN_FOR_COMPUTE_TYPES(Dropout)
SCALETRAIN_FOR_COMPUTE_TYPES(Scale)
SCALETRAIN_FOR_COMPUTE_TYPES(SoftCap)
SCALETRAIN_FOR_COMPUTE_TYPES(SoftCapBackward)
SCALETRAIN_FOR_COMPUTE_TYPES(Copy)
SCALETRAIN_FOR_COMPUTE_TYPES(Fill)

}  // namespace scaletrain::cuda
