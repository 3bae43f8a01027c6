// Linear maps, norms, activations and embeddings.
#include <cmath>
#include <numbers>
#include <vector>

#include "backend/reference/kernels.h"

namespace scaletrain::reference {

template <class T>
void compute(const LinearForward& op) {
  const std::int64_t rows = op.input.shape()[0];
  const std::int64_t inputs = op.input.shape()[1];
  const std::int64_t outputs = op.output.shape()[1];
  const T* weight = op.weight.values.as<T>();
  const T* input = op.input.as<T>();
  const T* bias = op.bias ? op.bias.as<T>() : nullptr;
  const T* addend = op.addend ? op.addend.as<T>() : nullptr;
  T* output = op.output.as<T>();
  for (std::int64_t n = 0; n < rows; ++n)
    for (std::int64_t o = 0; o < outputs; ++o) {
      double sum = 0;
      for (std::int64_t i = 0; i < inputs; ++i) sum += double(input[n * inputs + i]) * double(weight[o * inputs + i]);
      if (bias != nullptr) sum += double(bias[o]);
      if (addend != nullptr) sum += double(addend[n * outputs + o]);
      output[n * outputs + o] = static_cast<T>(sum);
    }
}

template <class T>
void compute(const LinearBackwardInput& op) {
  const std::int64_t rows = op.d_output.shape()[0];
  const std::int64_t outputs = op.d_output.shape()[1];
  const std::int64_t inputs = op.d_input.shape()[1];
  const T* weight = op.weight.values.as<T>();
  const T* d_output = op.d_output.as<T>();
  T* d_input = op.d_input.as<T>();
  std::vector<double> sums(static_cast<std::size_t>(inputs));
  for (std::int64_t n = 0; n < rows; ++n) {
    sums.assign(sums.size(), 0.0);
    for (std::int64_t o = 0; o < outputs; ++o)
      for (std::int64_t i = 0; i < inputs; ++i)
        sums[std::size_t(i)] += double(d_output[n * outputs + o]) * double(weight[o * inputs + i]);
    for (std::int64_t i = 0; i < inputs; ++i) d_input[n * inputs + i] = static_cast<T>(sums[std::size_t(i)]);
  }
}

template <class T>
void compute(const LinearBackwardWeight& op) {
  const std::int64_t rows = op.input.shape()[0];
  const std::int64_t inputs = op.input.shape()[1];
  const std::int64_t outputs = op.d_output.shape()[1];
  const T* input = op.input.as<T>();
  const T* d_output = op.d_output.as<T>();
  T* d_weight = op.d_weight.as<T>();
  T* d_bias = op.d_bias ? op.d_bias.as<T>() : nullptr;
  std::vector<double> sums(static_cast<std::size_t>(inputs));
  for (std::int64_t o = 0; o < outputs; ++o) {
    sums.assign(sums.size(), 0.0);
    double bias_sum = 0;
    for (std::int64_t n = 0; n < rows; ++n) {
      const double gradient = d_output[n * outputs + o];
      bias_sum += gradient;
      for (std::int64_t i = 0; i < inputs; ++i) sums[std::size_t(i)] += gradient * double(input[n * inputs + i]);
    }
    for (std::int64_t i = 0; i < inputs; ++i) {
      T& target = d_weight[o * inputs + i];
      target = static_cast<T>(double(target) + sums[std::size_t(i)]);
    }
    if (d_bias != nullptr) d_bias[o] = static_cast<T>(double(d_bias[o]) + bias_sum);
  }
}

template <class T>
void compute(const NormForward& op) {
  const bool centred = op.type == NormType::layernorm;
  const std::int64_t rows = op.input.shape()[0];
  const std::int64_t columns = op.input.shape()[1];
  const T* weight = op.weight.as<T>();
  const T* bias = op.bias ? op.bias.as<T>() : nullptr;
  T* rstds = op.rstd.as<T>();
  for (std::int64_t n = 0; n < rows; ++n) {
    const T* x = op.input.as<T>() + n * columns;
    T* y = op.output.as<T>() + n * columns;
    double mean = 0;
    if (centred) {
      for (std::int64_t c = 0; c < columns; ++c) mean += double(x[c]);
      mean /= double(columns);
      op.mean.as<T>()[n] = static_cast<T>(mean);
    }
    double squares = 0;
    for (std::int64_t c = 0; c < columns; ++c) squares += (double(x[c]) - mean) * (double(x[c]) - mean);
    const double rstd = 1.0 / std::sqrt(squares / double(columns) + op.epsilon);
    rstds[n] = static_cast<T>(rstd);
    for (std::int64_t c = 0; c < columns; ++c) {
      double value = (double(x[c]) - mean) * rstd * double(weight[c]);
      if (bias != nullptr) value += double(bias[c]);
      y[c] = static_cast<T>(value);
    }
  }
}

// With x̂ = (x - mean)·rstd and g = d_output·weight: d_input = rstd·(g - mean(g) - x̂·mean(g·x̂)); rmsnorm has no mean(g).
template <class T>
void compute(const NormBackwardInput& op) {
  const bool centred = op.type == NormType::layernorm;
  const std::int64_t rows = op.input.shape()[0];
  const std::int64_t columns = op.input.shape()[1];
  const T* weight = op.weight.as<T>();
  for (std::int64_t n = 0; n < rows; ++n) {
    const T* x = op.input.as<T>() + n * columns;
    const T* dy = op.d_output.as<T>() + n * columns;
    const T* addend = op.addend ? op.addend.as<T>() + n * columns : nullptr;
    T* dx = op.d_input.as<T>() + n * columns;
    const double mean = centred ? double(op.mean.as<T>()[n]) : 0.0;
    const double rstd = op.rstd.as<T>()[n];
    double mean_g = 0;
    double mean_gx = 0;
    for (std::int64_t c = 0; c < columns; ++c) {
      const double g = double(dy[c]) * double(weight[c]);
      mean_g += g;
      mean_gx += g * (double(x[c]) - mean) * rstd;
    }
    mean_g = centred ? mean_g / double(columns) : 0.0;
    mean_gx /= double(columns);
    for (std::int64_t c = 0; c < columns; ++c) {
      const double g = double(dy[c]) * double(weight[c]);
      double value = rstd * (g - mean_g - (double(x[c]) - mean) * rstd * mean_gx);
      if (addend != nullptr) value += double(addend[c]);
      dx[c] = static_cast<T>(value);
    }
  }
}

template <class T>
void compute(const NormBackwardWeight& op) {
  const std::int64_t rows = op.input.shape()[0];
  const std::int64_t columns = op.input.shape()[1];
  const T* x = op.input.as<T>();
  const T* dy = op.d_output.as<T>();
  const T* means = op.type == NormType::layernorm ? op.mean.as<T>() : nullptr;
  const T* rstds = op.rstd.as<T>();
  T* d_weight = op.d_weight.as<T>();
  T* d_bias = op.d_bias ? op.d_bias.as<T>() : nullptr;
  for (std::int64_t c = 0; c < columns; ++c) {
    double weight_sum = 0;
    double bias_sum = 0;
    for (std::int64_t n = 0; n < rows; ++n) {
      const double mean = means != nullptr ? double(means[n]) : 0.0;
      const double gradient = dy[n * columns + c];
      weight_sum += gradient * (double(x[n * columns + c]) - mean) * double(rstds[n]);
      bias_sum += gradient;
    }
    d_weight[c] = static_cast<T>(double(d_weight[c]) + weight_sum);
    if (d_bias != nullptr) d_bias[c] = static_cast<T>(double(d_bias[c]) + bias_sum);
  }
}

namespace {

constexpr double sqrt_2_over_pi = 0.79788456080286535588;
constexpr double gelu_cubic = 0.044715;

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

double gelu(double x, ActivationType type) {
  if (type == ActivationType::gelu) return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
  return 0.5 * x * (1.0 + std::tanh(sqrt_2_over_pi * (x + gelu_cubic * x * x * x)));
}

double gelu_derivative(double x, ActivationType type) {
  if (type == ActivationType::gelu) {
    const double density = std::exp(-0.5 * x * x) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
    return 0.5 * std::erfc(-x / std::numbers::sqrt2) + x * density;
  }
  const double t = std::tanh(sqrt_2_over_pi * (x + gelu_cubic * x * x * x));
  return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * sqrt_2_over_pi * (1.0 + 3.0 * gelu_cubic * x * x);
}

}  // namespace

template <class T>
void compute(const ActivationForward& op) {
  const std::int64_t rows = op.output.shape()[0];
  const std::int64_t features = op.output.shape()[1];
  const T* input = op.input.as<T>();
  T* output = op.output.as<T>();
  if (op.type != ActivationType::swiglu) {
    for (std::int64_t e = 0; e < rows * features; ++e) output[e] = static_cast<T>(gelu(double(input[e]), op.type));
    return;
  }
  for (std::int64_t n = 0; n < rows; ++n)
    for (std::int64_t f = 0; f < features; ++f) {
      const double gate = input[n * 2 * features + f];
      const double up = input[n * 2 * features + features + f];
      output[n * features + f] = static_cast<T>(gate * sigmoid(gate) * up);
    }
}

template <class T>
void compute(const ActivationBackward& op) {
  const std::int64_t rows = op.d_output.shape()[0];
  const std::int64_t features = op.d_output.shape()[1];
  const T* input = op.input.as<T>();
  const T* d_output = op.d_output.as<T>();
  T* d_input = op.d_input.as<T>();
  if (op.type != ActivationType::swiglu) {
    for (std::int64_t e = 0; e < rows * features; ++e)
      d_input[e] = static_cast<T>(double(d_output[e]) * gelu_derivative(double(input[e]), op.type));
    return;
  }
  for (std::int64_t n = 0; n < rows; ++n)
    for (std::int64_t f = 0; f < features; ++f) {
      const std::int64_t gate_at = n * 2 * features + f;
      const std::int64_t up_at = gate_at + features;
      const double gate = input[gate_at];
      const double up = input[up_at];
      const double gradient = d_output[n * features + f];
      const double s = sigmoid(gate);
      d_input[gate_at] = static_cast<T>(gradient * up * (s + gate * s * (1.0 - s)));
      d_input[up_at] = static_cast<T>(gradient * gate * s);
    }
}

template <class T>
void compute(const EmbeddingForward& op) {
  const std::int64_t rows = op.output.shape()[0];
  const std::int64_t columns = op.output.shape()[1];
  for (std::int64_t n = 0; n < rows; ++n) {
    const std::int64_t id = op.ids.as<std::int32_t>()[n];
    SCALETRAIN_CHECK_LE(0, id);
    SCALETRAIN_CHECK_LT(id, op.vocabulary != 0 ? op.vocabulary : op.table.shape()[0]);
    const std::int64_t local = id - op.first_id;
    const T* row = local >= 0 && local < op.table.shape()[0] ? op.table.as<T>() + local * columns : nullptr;
    const T* position_row = nullptr;
    if (op.position_table) {
      const std::int64_t position = op.positions.as<std::int32_t>()[n];
      SCALETRAIN_CHECK_LE(0, position);
      SCALETRAIN_CHECK_LT(position, op.position_table.shape()[0]);
      position_row = op.position_table.as<T>() + position * columns;
    }
    T* output = op.output.as<T>() + n * columns;
    for (std::int64_t c = 0; c < columns; ++c) {
      output[c] = row == nullptr ? T{0} : row[c];
      if (position_row != nullptr) output[c] += position_row[c];
    }
  }
}

namespace {

// Adds the rows of d_output that share an index, in order of n, and then their sum to the table, which begins at index
// `first` of `end`.
template <class T>
void add_rows(const ConstView& d_output, const std::int32_t* indices, const View& d_table, std::int64_t first,
              std::int64_t end) {
  const std::int64_t rows = d_output.shape()[0];
  const std::int64_t columns = d_output.shape()[1];
  std::vector<double> sums(static_cast<std::size_t>(d_table.num_elements()));
  for (std::int64_t n = 0; n < rows; ++n) {
    SCALETRAIN_CHECK_LE(0, indices[n]);
    SCALETRAIN_CHECK_LT(indices[n], end);
    const std::int64_t index = indices[n] - first;
    if (index < 0 || index >= d_table.shape()[0]) continue;
    for (std::int64_t c = 0; c < columns; ++c)
      sums[std::size_t(index * columns + c)] += double(d_output.as<T>()[n * columns + c]);
  }
  T* table = d_table.as<T>();
  for (std::size_t e = 0; e < sums.size(); ++e) table[e] = static_cast<T>(double(table[e]) + sums[e]);
}

}  // namespace

template <class T>
void compute(const EmbeddingBackward& op) {
  add_rows<T>(op.d_output, op.ids.as<std::int32_t>(), op.d_table, op.first_id,
              op.vocabulary != 0 ? op.vocabulary : op.d_table.shape()[0]);
  if (op.d_position_table)
    add_rows<T>(op.d_output, op.positions.as<std::int32_t>(), op.d_position_table, 0, op.d_position_table.shape()[0]);
}

#define SCALETRAIN_INSTANTIATE(Operation)            \
  template void compute<float>(const Operation& op); \
  template void compute<double>(const Operation& op)
SCALETRAIN_INSTANTIATE(LinearForward);
SCALETRAIN_INSTANTIATE(LinearBackwardInput);
SCALETRAIN_INSTANTIATE(LinearBackwardWeight);
SCALETRAIN_INSTANTIATE(NormForward);
SCALETRAIN_INSTANTIATE(NormBackwardInput);
SCALETRAIN_INSTANTIATE(NormBackwardWeight);
SCALETRAIN_INSTANTIATE(ActivationForward);
SCALETRAIN_INSTANTIATE(ActivationBackward);
SCALETRAIN_INSTANTIATE(EmbeddingForward);
SCALETRAIN_INSTANTIATE(EmbeddingBackward);
#undef SCALETRAIN_INSTANTIATE

}  // namespace scaletrain::reference
