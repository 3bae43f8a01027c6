// The oracle's attention against the textbook, and its backward against finite differences of its forward.
#include <cmath>

#include "oracle.h"
#include "softmax_attention.h"

using namespace scaletrain;
using namespace scaletrain::parity;

namespace {

AttentionProblem attention_problem() {
  AttentionProblem problem;
  problem.shape = {.batch = 2,
                   .num_queries = 4,
                   .num_keys = 6,
                   .heads = 4,
                   .kv_heads = 2,
                   .head_size = 3,
                   .first_query = 5,
                   .first_key = 3,
                   .scale = 0.7};
  problem.query = normal("query", 2 * 4 * 4 * 3);
  problem.key = normal("key", 2 * 6 * 2 * 3);
  problem.value = normal("value", 2 * 6 * 2 * 3);
  problem.d_output = normal("d_output", 2 * 4 * 4 * 3);
  problem.document_start = {0, 4, 6, 6, 3, 3, 3, 8};
  return problem;
}

AttentionResult reference_attention(const AttentionProblem& problem) {
  Oracle oracle;
  Device& device = oracle.device;
  const AttentionShape& s = problem.shape;
  const std::int64_t query_width = s.heads * s.head_size;
  const std::int64_t key_width = s.kv_heads * s.head_size;
  const auto query_view = [&](const Values& values) {
    return HeadsView{device.put(values, {s.batch * s.num_queries, query_width}), query_width};
  };
  const auto key_view = [&](const Values& values) {
    return HeadsView{device.put(values, {s.batch * s.num_keys, key_width}), key_width};
  };
  const auto constant = [](const HeadsView& heads) { return ConstHeadsView{heads.values, heads.row_stride}; };
  const HeadsView query = query_view(problem.query);
  const HeadsView key = key_view(problem.key);
  const HeadsView value = key_view(problem.value);
  const HeadsView output = query_view(zeros(static_cast<std::int64_t>(problem.query.size())));
  const View log_sum_exp = device.put(zeros(s.batch * s.heads * s.num_queries), {s.batch, s.heads, s.num_queries});
  const View documents =
      problem.document_start.empty() ? View() : device.put_ids(problem.document_start, {s.batch, s.num_queries});
  const AttentionDropout dropout = dropout_of(device, problem);
  device.run(AttentionForward{.shape = s,
                              .query = constant(query),
                              .key = constant(key),
                              .value = constant(value),
                              .document_start = documents,
                              .output = output,
                              .log_sum_exp = log_sum_exp,
                              .dropout = dropout});
  const HeadsView d_query = query_view(problem.query);  // overwritten
  const HeadsView d_key = key_view(problem.key);
  const HeadsView d_value = key_view(problem.value);
  device.run(AttentionBackward{.shape = s,
                               .query = constant(query),
                               .key = constant(key),
                               .value = constant(value),
                               .output = constant(output),
                               .d_output = constant(query_view(problem.d_output)),
                               .log_sum_exp = log_sum_exp,
                               .document_start = documents,
                               .d_query = d_query,
                               .d_key = d_key,
                               .d_value = d_value,
                               .dropout = dropout});
  AttentionResult result;
  result.output = Device::get(output.values);
  result.log_sum_exp = Device::get(log_sum_exp);
  result.d_query = Device::get(d_query.values);
  result.d_key = Device::get(d_key.values);
  result.d_value = Device::get(d_value.values);
  return result;
}

}  // namespace

TEST_CASE("attention_agrees_with_the_textbook") {
  AttentionProblem problem = attention_problem();
  for (const bool documents : {true, false}) {
    CAPTURE(documents);
    if (!documents) problem.document_start.clear();
    const AttentionResult expected = softmax_attention(problem);
    const AttentionResult found = reference_attention(problem);
    check_close(found.output, expected.output);
    check_close(found.log_sum_exp, expected.log_sum_exp);
    check_close(found.d_query, expected.d_query);
    check_close(found.d_key, expected.d_key);
    check_close(found.d_value, expected.d_value);
  }
}

TEST_CASE("attention_with_a_window_and_capped_scores_agrees_with_the_textbook") {
  AttentionProblem problem = attention_problem();
  for (const auto& limits : {std::pair<std::int64_t, double>{1, 0.0}, {3, 0.0}, {0, 0.5}, {2, 1.5}}) {
    problem.shape.window = limits.first;
    problem.shape.softcap = limits.second;
    CAPTURE(problem.shape.window);
    CAPTURE(problem.shape.softcap);
    const AttentionResult expected = softmax_attention(problem);
    const AttentionResult found = reference_attention(problem);
    check_close(found.output, expected.output);
    check_close(found.log_sum_exp, expected.log_sum_exp);
    check_close(found.d_query, expected.d_query);
    check_close(found.d_key, expected.d_key);
    check_close(found.d_value, expected.d_value);
  }
}

TEST_CASE("attention_with_dropout_agrees_with_the_textbook") {
  AttentionProblem problem = attention_problem();
  problem.dropout_key = philox_key(3, "probabilities");
  problem.samples = {41, std::int64_t{7} << 32};
  for (const auto& dropped : {std::pair<double, std::int64_t>{0.1, 0}, {0.5, 4}, {0.9, 1}}) {
    problem.dropout = dropped.first;
    problem.first_head = dropped.second;
    problem.shape.softcap = problem.dropout;
    CAPTURE(problem.dropout);
    const AttentionResult expected = softmax_attention(problem);
    const AttentionResult found = reference_attention(problem);
    check_close(found.output, expected.output);
    check_close(found.log_sum_exp, expected.log_sum_exp);
    check_close(found.d_query, expected.d_query);
    check_close(found.d_key, expected.d_key);
    check_close(found.d_value, expected.d_value);
  }
}

TEST_CASE("attention_gradients_match_finite_differences") {
  const AttentionProblem problem = attention_problem();
  const AttentionResult result = reference_attention(problem);
  struct Row {
    const char* name;
    Values AttentionProblem::*operand;
    Values AttentionResult::*gradient;
  };
  const Row rows[] = {{"query", &AttentionProblem::query, &AttentionResult::d_query},
                      {"key", &AttentionProblem::key, &AttentionResult::d_key},
                      {"value", &AttentionProblem::value, &AttentionResult::d_value}};
  for (const Row& row : rows) {
    const auto loss = [&](const Values& x) {
      AttentionProblem changed = problem;
      changed.*row.operand = x;
      return dot(reference_attention(changed).output, problem.d_output);
    };
    check_gradient(row.name, problem.*row.operand, loss, result.*row.gradient);
  }
}

TEST_CASE("attention_of_one_visible_key_copies_its_value") {
  AttentionProblem problem;
  problem.shape = {.batch = 1, .num_queries = 3, .num_keys = 3, .heads = 1, .kv_heads = 1, .head_size = 2};
  problem.query = normal("one query", 6);
  problem.key = normal("one key", 6);
  problem.value = normal("one value", 6);
  problem.d_output = normal("one d_output", 6);
  problem.document_start = {0, 1, 2};  // every token its own document
  check_close(reference_attention(problem).output, problem.value, 1e-15);
}

TEST_CASE("attention_stays_finite_for_huge_scores") {
  AttentionProblem problem = attention_problem();
  for (double& value : problem.query) value *= 1000;
  const AttentionResult result = reference_attention(problem);
  for (const Values* values : {&result.output, &result.log_sum_exp, &result.d_query, &result.d_key, &result.d_value})
    for (const double value : *values) CHECK(std::isfinite(value));
}

TEST_CASE("attention_of_a_query_that_sees_nothing_is_a_bug") {
  AttentionProblem problem = attention_problem();
  problem.document_start[0] = 6;  // the first query is at position 5
  CHECK_THROWS_AS(reference_attention(problem), BugError);
}
