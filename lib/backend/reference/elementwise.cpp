// The loss, element-wise operations and optimizer steps.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/reference/kernels.h"

namespace scaletrain::reference {

template <class T>
void compute(const CrossEntropy& op) {
  const std::int64_t rows = op.logits.shape()[0];
  const std::int64_t columns = op.logits.shape()[1];
  double loss = 0;
  for (std::int64_t n = 0; n < rows; ++n) {
    T* logits = op.logits.as<T>() + n * columns;
    const std::int64_t target = op.targets.as<std::int32_t>()[n];
    SCALETRAIN_CHECK_LE(-1, target);
    SCALETRAIN_CHECK_LT(target, columns);
    if (target == -1) {
      if (op.d_scale != 0) std::fill(logits, logits + columns, T{0});
      continue;
    }
    const double maximum = *std::max_element(logits, logits + columns);
    double total = 0;
    for (std::int64_t v = 0; v < columns; ++v) total += std::exp(double(logits[v]) - maximum);
    loss += maximum + std::log(total) - double(logits[target]);
    if (op.d_scale == 0) continue;
    for (std::int64_t v = 0; v < columns; ++v) {
      const double probability = std::exp(double(logits[v]) - maximum) / total;
      logits[v] = static_cast<T>(op.d_scale * (probability - (v == target ? 1.0 : 0.0)));
    }
  }
  *op.loss_sum += loss;
}

namespace {

std::int64_t target_of(const ConstView& targets, std::int64_t row, std::int64_t vocabulary) {
  const std::int64_t target = targets.as<std::int32_t>()[row];
  SCALETRAIN_CHECK_LE(-1, target);
  SCALETRAIN_CHECK_LT(target, vocabulary);
  return target;
}

}  // namespace

template <class T>
void compute(const SoftmaxStatistics& op) {
  const std::int64_t columns = op.logits.shape()[1];
  for (std::int64_t n = 0; n < op.logits.shape()[0]; ++n) {
    const T* logits = op.logits.as<T>() + n * columns;
    double maximum = -std::numeric_limits<double>::infinity();
    for (std::int64_t v = 0; v < columns; ++v) maximum = std::max(maximum, double(logits[v]));
    double total = 0;
    for (std::int64_t v = 0; v < columns; ++v) total += std::exp(double(logits[v]) - maximum);
    const std::int64_t target = target_of(op.targets, n, op.vocabulary) - op.first_class;
    T* statistics = op.statistics.as<T>() + n * 3;
    statistics[0] = static_cast<T>(maximum);
    statistics[1] = static_cast<T>(total);
    statistics[2] = target >= 0 && target < columns ? logits[target] : T{0};
  }
}

// With m_r and s_r the statistics of rank r and M the largest m_r: the sum of exp(logit - M) over the whole vocabulary
// is that of s_r · exp(m_r - M).
template <class T>
void compute(const CrossEntropyParts& op) {
  const std::int64_t ranks = op.statistics.shape()[0];
  const std::int64_t rows = op.logits.shape()[0];
  const std::int64_t columns = op.logits.shape()[1];
  double loss = 0;
  for (std::int64_t n = 0; n < rows; ++n) {
    T* logits = op.logits.as<T>() + n * columns;
    const std::int64_t target = target_of(op.targets, n, op.vocabulary);
    if (target == -1) {
      if (op.d_scale != 0) std::fill(logits, logits + columns, T{0});
      continue;
    }
    const auto of_rank = [&](std::int64_t rank, std::int64_t what) {
      return double(op.statistics.as<T>()[(rank * rows + n) * 3 + what]);
    };
    double maximum = -std::numeric_limits<double>::infinity();
    for (std::int64_t r = 0; r < ranks; ++r) maximum = std::max(maximum, of_rank(r, 0));
    double total = 0;
    double wanted = 0;
    for (std::int64_t r = 0; r < ranks; ++r) {
      total += of_rank(r, 1) * std::exp(of_rank(r, 0) - maximum);
      wanted += of_rank(r, 2);
    }
    loss += maximum + std::log(total) - wanted;
    if (op.d_scale == 0) continue;
    for (std::int64_t v = 0; v < columns; ++v) {
      const double probability = std::exp(double(logits[v]) - maximum) / total;
      logits[v] = static_cast<T>(op.d_scale * (probability - (op.first_class + v == target ? 1.0 : 0.0)));
    }
  }
  *op.loss_sum += loss;
}

template <class T>
void compute(const Add& op) {
  const T* a = op.a.as<T>();
  const T* b = op.b.as<T>();
  T* output = op.output.as<T>();
  for (std::int64_t e = 0; e < op.output.num_elements(); ++e) output[e] = a[e] + b[e];
}

void compute(const Copy& op) {
  const auto count = static_cast<std::size_t>(op.input.num_elements());
  if (op.input.dtype() != op.output.dtype()) {
    convert_floats(op.input.dtype(), op.input.data(), op.output.dtype(), op.output.data(), count);
    return;
  }
  const auto* input = static_cast<const std::byte*>(op.input.data());
  std::copy(input, input + op.input.num_bytes(), static_cast<std::byte*>(op.output.data()));
}

namespace {

template <class T>
void fill(const Fill& op) {
  T* output = op.output.as<T>();
  std::fill(output, output + op.output.num_elements(), static_cast<T>(op.value));
}

template <class T>
double sum_of_squares(const ConstView& values) {
  const T* elements = values.as<T>();
  double sum = 0;
  for (std::int64_t e = 0; e < values.num_elements(); ++e) sum += double(elements[e]) * double(elements[e]);
  return sum;
}

}  // namespace

void compute(const Fill& op) {
  if (op.output.dtype() == DType::f64) {
    fill<double>(op);
  } else {
    fill<float>(op);
  }
}

void compute(const SumOfSquares& op) {
  *op.result = op.values.dtype() == DType::f64 ? sum_of_squares<double>(op.values) : sum_of_squares<float>(op.values);
}

template <class T>
void compute(const AdamWStep& op) {
  if (op.step->skip != 0) return;
  const StepScalars step = *op.step;
  T* param = op.param.as<T>();
  T* first = op.first_moment.as<T>();
  T* second = op.second_moment.as<T>();
  const T* gradient = op.gradient.as<T>();
  for (const DecaySpan& span : op.spans)
    for (std::int64_t e = span.first; e < span.first + span.count; ++e) {
      const double g = double(gradient[e]) * step.gradient_scale;
      const double m = op.beta1 * double(first[e]) + (1.0 - op.beta1) * g;
      const double v = op.beta2 * double(second[e]) + (1.0 - op.beta2) * g * g;
      const double direction = m / step.bias_correction1 / (std::sqrt(v / step.bias_correction2) + op.epsilon);
      const double p = param[e];
      param[e] = static_cast<T>(p - step.learning_rate * (direction + span.weight_decay * p));
      first[e] = static_cast<T>(m);
      second[e] = static_cast<T>(v);
    }
}

template <class T>
void compute(const SgdStep& op) {
  if (op.step->skip != 0) return;
  const StepScalars step = *op.step;
  T* param = op.param.as<T>();
  const T* gradient = op.gradient.as<T>();
  for (const DecaySpan& span : op.spans)
    for (std::int64_t e = span.first; e < span.first + span.count; ++e) {
      const double p = param[e];
      const double g = double(gradient[e]) * step.gradient_scale;
      param[e] = static_cast<T>(p - step.learning_rate * (g + span.weight_decay * p));
    }
}

#define SCALETRAIN_INSTANTIATE(Operation)            \
  template void compute<float>(const Operation& op); \
  template void compute<double>(const Operation& op)
SCALETRAIN_INSTANTIATE(CrossEntropy);
SCALETRAIN_INSTANTIATE(SoftmaxStatistics);
SCALETRAIN_INSTANTIATE(CrossEntropyParts);
SCALETRAIN_INSTANTIATE(Add);
SCALETRAIN_INSTANTIATE(AdamWStep);
SCALETRAIN_INSTANTIATE(SgdStep);
#undef SCALETRAIN_INSTANTIATE

}  // namespace scaletrain::reference
