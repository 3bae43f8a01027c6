// Rotary position embedding, and attention by the definition: all scores of a query, softmax, weighted sum.
#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/reference/kernels.h"

namespace scaletrain::reference {

template <class T>
void compute(const RopeRotate& op) {
  const std::int64_t half = op.head_size / 2;
  const std::int64_t rows = op.positions.shape()[0];
  for (std::int64_t n = 0; n < rows; ++n) {
    const double position = op.positions.as<std::int32_t>()[n];
    for (std::int64_t d = 0; d < half; ++d) {
      const double frequency = std::pow(op.theta, -2.0 * double(d) / double(op.head_size));
      const double angle = (op.inverse ? -position : position) * frequency;
      const double cosine = std::cos(angle);
      const double sine = std::sin(angle);
      for (std::int64_t head = 0; head < op.num_heads; ++head) {
        T* pair = op.values.as<T>() + n * op.row_stride + head * op.head_size + d;
        const double low = pair[0];
        const double high = pair[half];
        pair[0] = static_cast<T>(low * cosine - high * sine);
        pair[half] = static_cast<T>(high * cosine + low * sine);
      }
    }
  }
}

namespace {

// The keys [first, last) of a batch that a query may see, as row numbers.
struct KeyRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
};

KeyRange visible_keys(const AttentionShape& shape, const ConstView& document_start, std::int64_t b, std::int64_t t) {
  KeyRange range;
  range.last = std::min(shape.num_keys, shape.first_query + t - shape.first_key + 1);
  if (document_start) {
    const std::int64_t start = document_start.as<std::int32_t>()[b * shape.num_queries + t];
    range.first = std::max<std::int64_t>(0, start - shape.first_key);
  }
  SCALETRAIN_CHECK_LT(range.first, range.last);
  return range;
}

template <class T>
double dot(const T* a, const T* b, std::int64_t count) {
  double sum = 0;
  for (std::int64_t d = 0; d < count; ++d) sum += double(a[d]) * double(b[d]);
  return sum;
}

}  // namespace

template <class T>
void compute(const AttentionForward& op) {
  const AttentionShape& shape = op.shape;
  const std::int64_t size = shape.head_size;
  std::vector<double> scores(static_cast<std::size_t>(shape.num_keys));
  std::vector<double> sums(static_cast<std::size_t>(size));
  for (std::int64_t b = 0; b < shape.batch; ++b)
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      const std::int64_t kv_head = h / (shape.heads / shape.kv_heads);
      const T* keys = op.key.values.as<T>() + b * shape.num_keys * op.key.row_stride + kv_head * size;
      const T* values = op.value.values.as<T>() + b * shape.num_keys * op.value.row_stride + kv_head * size;
      for (std::int64_t t = 0; t < shape.num_queries; ++t) {
        const std::int64_t row = b * shape.num_queries + t;
        const KeyRange range = visible_keys(shape, op.document_start, b, t);
        const T* query = op.query.values.as<T>() + row * op.query.row_stride + h * size;
        double maximum = -INFINITY;
        for (std::int64_t s = range.first; s < range.last; ++s) {
          scores[std::size_t(s)] = shape.scale * dot(query, keys + s * op.key.row_stride, size);
          maximum = std::max(maximum, scores[std::size_t(s)]);
        }
        double total = 0;
        sums.assign(sums.size(), 0.0);
        for (std::int64_t s = range.first; s < range.last; ++s) {
          const double weight = std::exp(scores[std::size_t(s)] - maximum);
          total += weight;
          const T* value = values + s * op.value.row_stride;
          for (std::int64_t d = 0; d < size; ++d) sums[std::size_t(d)] += weight * double(value[d]);
        }
        T* output = op.output.values.as<T>() + row * op.output.row_stride + h * size;
        for (std::int64_t d = 0; d < size; ++d) output[d] = static_cast<T>(sums[std::size_t(d)] / total);
        if (op.log_sum_exp)
          op.log_sum_exp.as<T>()[(b * shape.heads + h) * shape.num_queries + t] =
              static_cast<T>(maximum + std::log(total));
      }
    }
}

namespace {

// Sums of one key/value head of one batch, [Tk,D] each.
struct KeyValueSums {
  std::vector<double> key;
  std::vector<double> value;
};

// The gradients of one query row of one head: with p = exp(score - log-sum-exp) and δ = d_output·output,
// dV_s += p_s·d_output, dS_s = p_s·(d_output·V_s - δ), dQ = scale·Σ dS_s·K_s, dK_s += scale·dS_s·Q.
template <class T>
void backward_query(const AttentionBackward& op, std::int64_t b, std::int64_t h, std::int64_t t, KeyValueSums& sums) {
  const AttentionShape& shape = op.shape;
  const std::int64_t size = shape.head_size;
  const std::int64_t kv_head = h / (shape.heads / shape.kv_heads);
  const T* keys = op.key.values.as<T>() + b * shape.num_keys * op.key.row_stride + kv_head * size;
  const T* values = op.value.values.as<T>() + b * shape.num_keys * op.value.row_stride + kv_head * size;
  const std::int64_t row = b * shape.num_queries + t;
  const T* query = op.query.values.as<T>() + row * op.query.row_stride + h * size;
  const T* output = op.output.values.as<T>() + row * op.output.row_stride + h * size;
  const T* d_output = op.d_output.values.as<T>() + row * op.d_output.row_stride + h * size;
  const double log_sum_exp = op.log_sum_exp.as<T>()[(b * shape.heads + h) * shape.num_queries + t];
  const double delta = dot(d_output, output, size);
  const KeyRange range = visible_keys(shape, op.document_start, b, t);
  std::vector<double> d_query_sums(static_cast<std::size_t>(size));
  for (std::int64_t s = range.first; s < range.last; ++s) {
    const T* key = keys + s * op.key.row_stride;
    const double weight = std::exp(shape.scale * dot(query, key, size) - log_sum_exp);
    const double d_score = shape.scale * weight * (dot(d_output, values + s * op.value.row_stride, size) - delta);
    for (std::int64_t d = 0; d < size; ++d) {
      d_query_sums[std::size_t(d)] += d_score * double(key[d]);
      sums.key[std::size_t(s * size + d)] += d_score * double(query[d]);
      sums.value[std::size_t(s * size + d)] += weight * double(d_output[d]);
    }
  }
  T* d_query = op.d_query.values.as<T>() + row * op.d_query.row_stride + h * size;
  for (std::int64_t d = 0; d < size; ++d) d_query[d] = static_cast<T>(d_query_sums[std::size_t(d)]);
}

}  // namespace

template <class T>
void compute(const AttentionBackward& op) {
  const AttentionShape& shape = op.shape;
  const std::int64_t size = shape.head_size;
  const std::int64_t group = shape.heads / shape.kv_heads;
  for (std::int64_t b = 0; b < shape.batch; ++b)
    for (std::int64_t g = 0; g < shape.kv_heads; ++g) {
      const auto count = static_cast<std::size_t>(shape.num_keys * size);
      KeyValueSums sums{std::vector<double>(count), std::vector<double>(count)};
      for (std::int64_t h = g * group; h < (g + 1) * group; ++h)
        for (std::int64_t t = 0; t < shape.num_queries; ++t) backward_query<T>(op, b, h, t, sums);
      for (std::int64_t s = 0; s < shape.num_keys; ++s) {
        const std::int64_t row = b * shape.num_keys + s;
        T* d_key = op.d_key.values.as<T>() + row * op.d_key.row_stride + g * size;
        T* d_value = op.d_value.values.as<T>() + row * op.d_value.row_stride + g * size;
        for (std::int64_t d = 0; d < size; ++d) {
          d_key[d] = static_cast<T>(sums.key[std::size_t(s * size + d)]);
          d_value[d] = static_cast<T>(sums.value[std::size_t(s * size + d)]);
        }
      }
    }
}

#define SCALETRAIN_INSTANTIATE(Operation)            \
  template void compute<float>(const Operation& op); \
  template void compute<double>(const Operation& op)
SCALETRAIN_INSTANTIATE(RopeRotate);
SCALETRAIN_INSTANTIATE(AttentionForward);
SCALETRAIN_INSTANTIATE(AttentionBackward);
#undef SCALETRAIN_INSTANTIATE

}  // namespace scaletrain::reference
