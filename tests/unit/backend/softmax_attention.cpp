#include "softmax_attention.h"

#include <cmath>

#include "support/dropped.h"

namespace scaletrain::parity {

namespace {

// One query row of one head: p over all keys (0 where masked), and the gradient of the scaled scores, before the cap.
struct Row {
  Values probability, slope, d_score, d_score_scale, factor;
  double log_sum_exp = 0;
};

class Attention {
 public:
  explicit Attention(const AttentionProblem& problem) : problem_(problem), shape_(problem.shape) {
    const auto queries = static_cast<std::size_t>(shape_.batch * shape_.num_queries * shape_.heads * shape_.head_size);
    const auto keys = static_cast<std::size_t>(shape_.batch * shape_.num_keys * shape_.kv_heads * shape_.head_size);
    for (Values* values : {&result_.output, &result_.d_query, &result_.output_scale, &result_.d_query_scale})
      values->assign(queries, 0.0);
    for (Values* values : {&result_.d_key, &result_.d_value, &result_.d_key_scale, &result_.d_value_scale})
      values->assign(keys, 0.0);
    result_.log_sum_exp.assign(static_cast<std::size_t>(shape_.batch * shape_.heads * shape_.num_queries), 0.0);
  }

  AttentionResult compute() {
    for (std::int64_t b = 0; b < shape_.batch; ++b)
      for (std::int64_t h = 0; h < shape_.heads; ++h)
        for (std::int64_t t = 0; t < shape_.num_queries; ++t) add(b, h, t, row_of(b, h, t));
    for (Values* values : {&result_.output_scale, &result_.d_query_scale, &result_.d_key_scale, &result_.d_value_scale})
      for (double& value : *values) value = std::sqrt(value);
    return result_;
  }

 private:
  std::size_t query_at(std::int64_t b, std::int64_t h, std::int64_t t) const {
    return static_cast<std::size_t>(((b * shape_.num_queries + t) * shape_.heads + h) * shape_.head_size);
  }
  std::size_t key_at(std::int64_t b, std::int64_t h, std::int64_t s) const {
    const std::int64_t group = shape_.heads / shape_.kv_heads;
    return static_cast<std::size_t>(((b * shape_.num_keys + s) * shape_.kv_heads + h / group) * shape_.head_size);
  }
  bool visible(std::int64_t b, std::int64_t t, std::int64_t s) const {
    const std::int64_t position = shape_.first_key + s;
    if (position > shape_.first_query + t) return false;
    if (shape_.window > 0 && shape_.first_query + t - position >= shape_.window) return false;
    if (problem_.document_start.empty()) return true;
    return position >= problem_.document_start[static_cast<std::size_t>(b * shape_.num_queries + t)];
  }

  Values factors_of(std::int64_t b, std::int64_t h, std::int64_t t) const {
    Values factors(static_cast<std::size_t>(shape_.num_keys), 1.0);
    if (problem_.dropout == 0) return factors;
    for (std::int64_t s = 0; s < shape_.num_keys; ++s)
      factors[static_cast<std::size_t>(s)] =
          dropped(problem_.dropout_key, problem_.dropout, problem_.samples[static_cast<std::size_t>(b)],
                  (problem_.first_head + h) * shape_.num_queries + t, shape_.num_keys, s);
    return factors;
  }

  Row row_of(std::int64_t b, std::int64_t h, std::int64_t t) const {
    const auto keys = static_cast<std::size_t>(shape_.num_keys);
    Row row{Values(keys), Values(keys, 1.0), Values(keys), Values(keys), factors_of(b, h, t), 0.0};
    const std::size_t q = query_at(b, h, t);
    const auto size = static_cast<std::size_t>(shape_.head_size);
    double total = 0;
    for (std::size_t s = 0; s < keys; ++s) {
      if (!visible(b, t, static_cast<std::int64_t>(s))) continue;
      const std::size_t k = key_at(b, h, static_cast<std::int64_t>(s));
      double score = 0;
      for (std::size_t d = 0; d < size; ++d) score += problem_.query[q + d] * problem_.key[k + d];
      score *= shape_.scale;
      if (shape_.softcap > 0) {
        row.slope[s] = 1.0 / square(std::cosh(score / shape_.softcap));
        score = shape_.softcap * std::tanh(score / shape_.softcap);
      }
      row.probability[s] = std::exp(score);
      total += row.probability[s];
    }
    row.log_sum_exp = std::log(total);
    Values d_probability(keys);
    Values squares(keys);
    double mean = 0;
    double mean_squares = 0;
    for (std::size_t s = 0; s < keys; ++s) {
      row.probability[s] /= total;
      const std::size_t k = key_at(b, h, static_cast<std::int64_t>(s));
      for (std::size_t d = 0; d < size; ++d) {
        const double term = row.factor[s] * problem_.d_output[q + d] * problem_.value[k + d];
        d_probability[s] += term;
        squares[s] += term * term;
      }
      mean += row.probability[s] * d_probability[s];
      mean_squares += row.probability[s] * squares[s];
    }
    for (std::size_t s = 0; s < keys; ++s) {
      row.d_score[s] = row.probability[s] * row.slope[s] * (d_probability[s] - mean);
      row.d_score_scale[s] = row.probability[s] * std::sqrt(squares[s] + mean_squares);
    }
    return row;
  }

  void add(std::int64_t b, std::int64_t h, std::int64_t t, const Row& row) {
    const std::size_t q = query_at(b, h, t);
    const auto size = static_cast<std::size_t>(shape_.head_size);
    result_.log_sum_exp[static_cast<std::size_t>((b * shape_.heads + h) * shape_.num_queries + t)] = row.log_sum_exp;
    for (std::size_t s = 0; s < row.probability.size(); ++s) {
      const std::size_t k = key_at(b, h, static_cast<std::int64_t>(s));
      const double weight = row.factor[s] * row.probability[s];
      for (std::size_t d = 0; d < size; ++d) {
        result_.output[q + d] += weight * problem_.value[k + d];
        result_.output_scale[q + d] += square(weight * problem_.value[k + d]);
        result_.d_query[q + d] += shape_.scale * row.d_score[s] * problem_.key[k + d];
        result_.d_query_scale[q + d] += square(shape_.scale * row.d_score_scale[s] * problem_.key[k + d]);
        result_.d_key[k + d] += shape_.scale * row.d_score[s] * problem_.query[q + d];
        result_.d_key_scale[k + d] += square(shape_.scale * row.d_score_scale[s] * problem_.query[q + d]);
        result_.d_value[k + d] += weight * problem_.d_output[q + d];
        result_.d_value_scale[k + d] += square(weight * problem_.d_output[q + d]);
      }
    }
  }

  const AttentionProblem& problem_;
  const AttentionShape& shape_;
  AttentionResult result_;
};

}  // namespace

AttentionDropout dropout_of(Device& device, const AttentionProblem& problem) {
  if (problem.dropout == 0) return {};
  return {.mask = {.probability = problem.dropout,
                   .key = problem.dropout_key,
                   .samples = device.put_numbers(problem.samples, {problem.shape.batch})},
          .first_head = problem.first_head};
}

AttentionResult softmax_attention(const AttentionProblem& problem) {
  return Attention(problem).compute();
}

}  // namespace scaletrain::parity
