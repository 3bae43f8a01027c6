// Every operation of every backend against the f64 reference, and the proof that the comparison notices one wrong
// element.
#include <doctest/doctest.h>

#include <cstdlib>

#include "cases.h"
#include "support/numbers.h"
#include "support/sanitized_by_day.h"

using namespace scaletrain;
using namespace scaletrain::parity;

const std::vector<CasesOfOperation>& scaletrain::parity::all_cases() {
  static const std::vector<CasesOfOperation> operations = {{"linear_forward", linear_forward_cases},
                                                           {"linear_backward_input", linear_backward_input_cases},
                                                           {"linear_backward_weight", linear_backward_weight_cases},
                                                           {"norm_forward", norm_forward_cases},
                                                           {"norm_backward_input", norm_backward_input_cases},
                                                           {"norm_backward_weight", norm_backward_weight_cases},
                                                           {"activation_forward", activation_forward_cases},
                                                           {"activation_backward", activation_backward_cases},
                                                           {"rope", rope_cases},
                                                           {"attention_forward", attention_forward_cases},
                                                           {"attention_backward", attention_backward_cases},
                                                           {"embedding_forward", embedding_forward_cases},
                                                           {"embedding_backward", embedding_backward_cases},
                                                           {"embedding_part_forward", embedding_part_forward_cases},
                                                           {"embedding_part_backward", embedding_part_backward_cases},
                                                           {"cross_entropy", cross_entropy_cases},
                                                           {"softmax_statistics", softmax_statistics_cases},
                                                           {"cross_entropy_parts", cross_entropy_parts_cases},
                                                           {"add", add_cases},
                                                           {"dropout", dropout_cases},
                                                           {"scale", scale_cases},
                                                           {"soft_cap", soft_cap_cases},
                                                           {"soft_cap_backward", soft_cap_backward_cases},
                                                           {"copy", copy_cases},
                                                           {"fill", fill_cases},
                                                           {"sums_of_squares", sums_of_squares_cases},
                                                           {"adamw", adamw_cases},
                                                           {"block_adamw", block_adamw_cases},
                                                           {"sgd", sgd_cases},
                                                           {"momentum", momentum_cases},
                                                           {"lion", lion_cases},
                                                           {"ademamix", ademamix_cases},
                                                           {"adam_direction", adam_direction_cases},
                                                           {"momentum_direction", momentum_direction_cases},
                                                           {"scale_spans", scale_spans_cases},
                                                           {"matrix_squares", matrix_squares_cases},
                                                           {"factored_direction", factored_direction_cases},
                                                           {"rms_direction", rms_direction_cases},
                                                           {"average", average_cases},
                                                           {"swap", swap_cases},
                                                           {"matrix_product", matrix_product_cases}};
  return operations;
}

// Halves share kernels but for how elements are loaded and stored: each has every other case, by night all. Under
// sanitizers, where each takes longer, so have floats.
TEST_CASE("every_backend_agrees_with_the_f64_reference_on_every_operation") {
  const bool all = std::getenv("SCALETRAIN_PARITY_ALL") != nullptr;
  for (const CasesOfOperation& operation : all_cases()) {
    const std::vector<Case> cases = operation.cases();
    CHECK(cases.size() >= 30);
    const auto check_every = [&](std::size_t step, std::size_t first, DType dtype) {
      std::vector<Case> some;
      for (std::size_t i = 0; i < cases.size(); ++i)
        if (all || i % step == first) some.push_back(cases[i]);
      check_parity(operation.name, some, dtype);
    };
    check_every(is_sanitized ? 2 : 1, 0, DType::f32);
    check_every(2, 0, DType::bf16);
    check_every(2, 1, DType::f16);
  }
}

TEST_CASE("an_error_planted_in_one_element_of_any_output_is_found") {
  // What compares is the same for each operation, and is the test's own: under sanitizers every eighth has it.
  const std::size_t step = is_sanitized_by_day() ? 8 : 1;
  for (std::size_t i = 0; i < all_cases().size(); i += step)
    check_that_planted_errors_are_found(all_cases()[i].name, all_cases()[i].cases());
}

TEST_CASE("a_nan_or_a_missing_element_is_a_mismatch") {
  Case c;
  c.name = "case";
  c.scales = {{1.0, 1.0}};
  const std::vector<Output> expected{{"output", {1.0, 2.0}}};
  CHECK_FALSE(find_mismatch(c, DType::f32, expected, expected).has_value());
  CHECK_FALSE(find_mismatch(c, DType::f32, expected, {{"output", {1.0, 2.0 + 1.9e-6}}}).has_value());
  CHECK(find_mismatch(c, DType::f32, expected, {{"output", {1.0, 2.0 + 2.1e-6}}}).has_value());
  CHECK(find_mismatch(c, DType::f32, expected, {{"output", {1.0, 0.0 / 0.0}}}).has_value());
  CHECK(find_mismatch(c, DType::f32, expected, {{"output", {1.0}}}).has_value());
  CHECK(find_mismatch(c, DType::f32, expected, {}).has_value());
  const std::vector<Output> inexact{{"output", {1.0, 2.001}}};  // the bf16 below is 2, the one above 2.015625
  CHECK_FALSE(find_mismatch(c, DType::bf16, inexact, {{"output", {1.0, 2.0}}}).has_value());
  CHECK(find_mismatch(c, DType::bf16, inexact, {{"output", {1.0, 2.015625}}}).has_value());
  CHECK(find_mismatch(c, DType::bf16, {{"output", {1.0, 2.001}, Kind::master}}, {{"output", {1.0, 2.0}}}).has_value());
  c.scales = {{1.0, untouched}};
  CHECK(find_mismatch(c, DType::f32, expected, {{"output", {1.0, 2.0 + 1e-15}}}).has_value());
}

TEST_CASE("sums_over_rows_have_the_same_bits_for_any_number_of_threads") {
  const Values values = normal("threads", 100003);
  const std::int64_t rows = 1031;
  const Values logits = normal("threads logits", rows * 97, 0.0, 3.0);
  const Ids targets = random_ids("threads targets", rows, 97);
  double first_sum = 0;
  double first_loss = 0;
  for (const int threads : {1, 2, 5}) {
    CAPTURE(threads);
    CpuOptions options;
    options.threads = threads;
    const auto backend = make_cpu_backend(options);
    CHECK(backend->num_threads() == threads);
    Device device(*backend);
    const ElementSpan all{.first = 0, .count = 100003};
    double sum = 0;
    double loss = 0;
    device.run(SumsOfSquares{.values = device.put(values, {100003}), .spans = {&all, 1}, .results = number_at(sum)});
    device.run(CrossEntropy{.logits = device.put(logits, {rows, 97}),
                            .targets = device.put_ids(targets, {rows}),
                            .d_scale = 0,
                            .loss_sum = number_at(loss)});
    if (threads == 1) {
      first_sum = sum;
      first_loss = loss;
    }
    CHECK(sum == first_sum);
    CHECK(loss == first_loss);
  }
  CHECK(first_loss > 0);
}
