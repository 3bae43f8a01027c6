// The oracle itself: backward passes against finite differences of the forward ones in f64, every element of every
// input; and results that a hand or a closed formula gives. Attention: reference_attention_test.cpp.
#include <cmath>
#include <numbers>
#include <string>

#include "oracle.h"
#include "support/near.h"
#include "support/numbers.h"

using namespace scaletrain;
using namespace scaletrain::parity;

TEST_CASE("linear_map_of_small_numbers_by_hand") {
  Oracle oracle;
  Device& device = oracle.device;
  const View output = device.put(zeros(4), {2, 2});
  device.run(LinearForward{.weight = device.put_weight({1, 2, 3, 4, 5, 6}, {2, 3}, false),
                           .bias = device.put({10, 20}, {2}),
                           .input = device.put({1, 0, -1, 2, 1, 0}, {2, 3}),
                           .addend = device.put({100, 200, 300, 400}, {2, 2}),
                           .output = output});
  CHECK(Device::get(output) == Values{108, 218, 314, 433});
}

TEST_CASE("matrix_products_of_small_numbers_by_hand") {
  Oracle oracle;
  Device& device = oracle.device;
  const View a = device.put({1, 2, 3, 4, 5, 6}, {2, 3});
  const View turned = device.put({1, 4, 2, 5, 3, 6}, {3, 2});
  const View b = device.put({1, 0, -1, 2, 1, 0}, {3, 2});
  const View turned_b = device.put({1, -1, 1, 0, 2, 0}, {2, 3});
  const View output = device.put({10, 20, 30, 40}, {2, 2});
  device.run(MatrixProduct{.a = a, .b = b, .addend = {}, .output = output, .factor = 2});
  CHECK(Device::get(output) == Values{4, 8, 10, 20});
  for (const bool of_a : {false, true})
    for (const bool of_b : {false, true}) {
      device.run(MatrixProduct{.a = of_a ? turned : a,
                               .b = of_b ? turned_b : b,
                               .addend = output,
                               .output = output,
                               .a_is_transposed = of_a,
                               .b_is_transposed = of_b,
                               .factor = -3,
                               .addend_factor = 2});
    }
  // Of y = 2y - 3x four times, from 4, 8, 10 and 20: 16 of each, less 45 times 2, 4, 5 and 10.
  CHECK(Device::get(output) == Values{-26, -52, -65, -130});
}

TEST_CASE("linear_gradients_match_finite_differences") {
  const Values weight = normal("weight", 15);
  const Values bias = normal("bias", 5);
  const Values input = normal("input", 12);
  const Values r = normal("r", 20);
  const auto loss = [&](const Values& w, const Values& b, const Values& x) {
    Oracle oracle;
    Device& device = oracle.device;
    const View output = device.put(zeros(20), {4, 5});
    device.run(LinearForward{.weight = device.put_weight(w, {5, 3}, false),
                             .bias = device.put(b, {5}),
                             .input = device.put(x, {4, 3}),
                             .addend = {},
                             .output = output});
    return dot(Device::get(output), r);
  };
  Oracle oracle;
  Device& device = oracle.device;
  const View d_output = device.put(r, {4, 5});
  const View d_input = device.put(zeros(12), {4, 3});
  const View d_weight = device.put(zeros(15), {5, 3});
  const View d_bias = device.put(zeros(5), {5});
  device.run(LinearBackwardInput{
      .weight = device.put_weight(weight, {5, 3}, false), .d_output = d_output, .d_input = d_input});
  const LinearBackwardWeight op{
      .input = device.put(input, {4, 3}), .d_output = d_output, .d_weight = d_weight, .d_bias = d_bias};
  device.run(op);
  check_gradient(
      "input", input, [&](const Values& x) { return loss(weight, bias, x); }, Device::get(d_input));
  check_gradient(
      "weight", weight, [&](const Values& w) { return loss(w, bias, input); }, Device::get(d_weight));
  check_gradient(
      "bias", bias, [&](const Values& b) { return loss(weight, b, input); }, Device::get(d_bias));
  const Values once = Device::get(d_weight);
  device.run(op);  // gradients accumulate
  check_close(Device::get(d_weight), map(once, [](double v) { return 2 * v; }));
}

TEST_CASE("normalised_rows_have_mean_zero_and_size_one") {
  Oracle oracle;
  Device& device = oracle.device;
  const Values input = normal("rows", 3 * 50, 4.0, 2.0);
  const View output = device.put(zeros(150), {3, 50});
  const View mean = device.put(zeros(3), {3});
  const View rstd = device.put(zeros(3), {3});
  const View ones = device.put(Values(50, 1.0), {50});
  device.run(NormForward{.type = NormType::layernorm,
                         .epsilon = 0,
                         .input = device.put(input, {3, 50}),
                         .weight = ones,
                         .bias = {},
                         .output = output,
                         .mean = mean,
                         .rstd = rstd});
  const Values rows = Device::get(output);
  for (std::size_t n = 0; n < 3; ++n) {
    double sum = 0;
    double squares = 0;
    for (std::size_t c = 0; c < 50; ++c) {
      sum += rows[n * 50 + c];
      squares += square(rows[n * 50 + c]);
      CHECK(rows[n * 50 + c] / Device::get(rstd)[n] + Device::get(mean)[n] == Near(input[n * 50 + c]));
    }
    CHECK(std::fabs(sum) < 1e-12);
    CHECK(squares == Near(50).epsilon(1e-12));
  }
  // rmsnorm of (3, 4): the root of the mean square is √12.5.
  const View pair = device.put(zeros(2), {1, 2});
  device.run(NormForward{.type = NormType::rmsnorm,
                         .epsilon = 0,
                         .input = device.put({3, 4}, {1, 2}),
                         .weight = device.put({1, 10}, {2}),
                         .bias = {},
                         .output = pair,
                         .mean = {},
                         .rstd = device.put({0}, {1})});
  check_close(Device::get(pair), {3 / std::sqrt(12.5), 40 / std::sqrt(12.5)});
}

TEST_CASE("norm_gradients_match_finite_differences") {
  const std::int64_t rows = 3;
  const std::int64_t columns = 5;
  const Shape shape{rows, columns};
  const Values input = normal("norm input", 15, 0.5, 1.0);
  const Values weight = normal("norm weight", 5, 1.0, 0.3);
  const Values bias = normal("norm bias", 5);
  const Values r = normal("norm r", 15);
  const Values residual = normal("norm residual", 15);
  for (const NormType type : {NormType::layernorm, NormType::rmsnorm}) {
    const bool layernorm = type == NormType::layernorm;
    CAPTURE(layernorm);
    const auto forward = [&](Device& device, const Values& x, const Values& w, const Values& b) {
      NormForward op{.type = type,
                     .epsilon = 1e-3,
                     .input = device.put(x, shape),
                     .weight = device.put(w, {columns}),
                     .bias = layernorm ? device.put(b, {columns}) : View(),
                     .output = device.put(zeros(15), shape),
                     .mean = layernorm ? device.put(zeros(rows), {rows}) : View(),
                     .rstd = device.put(zeros(rows), {rows})};
      device.run(op);
      return op;
    };
    const auto loss = [&](const Values& x, const Values& w, const Values& b) {
      Oracle oracle;
      return dot(Device::get(forward(oracle.device, x, w, b).output), r);
    };
    Oracle oracle;
    Device& device = oracle.device;
    const NormForward saved = forward(device, input, weight, bias);
    const View d_output = device.put(r, shape);
    const View d_input = device.put(zeros(15), shape);
    const View d_weight = device.put(zeros(columns), {columns});
    const View d_bias = layernorm ? device.put(zeros(columns), {columns}) : View();
    device.run(NormBackwardInput{.type = type,
                                 .d_output = d_output,
                                 .input = saved.input,
                                 .weight = saved.weight,
                                 .mean = saved.mean,
                                 .rstd = saved.rstd,
                                 .addend = device.put(residual, shape),
                                 .d_input = d_input});
    device.run(NormBackwardWeight{.type = type,
                                  .d_output = d_output,
                                  .input = saved.input,
                                  .mean = saved.mean,
                                  .rstd = saved.rstd,
                                  .d_weight = d_weight,
                                  .d_bias = d_bias});
    const auto with_residual = [&](const Values& x) { return loss(x, weight, bias) + dot(x, residual); };
    check_gradient("input", input, with_residual, Device::get(d_input));
    check_gradient(
        "weight", weight, [&](const Values& w) { return loss(input, w, bias); }, Device::get(d_weight));
    if (layernorm)
      check_gradient(
          "bias", bias, [&](const Values& b) { return loss(input, weight, b); }, Device::get(d_bias));
  }
}

TEST_CASE("activations_have_known_values") {
  Oracle oracle;
  Device& device = oracle.device;
  const View output = device.put(zeros(4), {1, 4});
  const View input = device.put({0, 1, -1, 2}, {1, 4});
  device.run(ActivationForward{.type = ActivationType::gelu, .input = input, .output = output});
  const double phi1 = 0.84134474606854294859;  // Φ(1), Φ(2): tables of the normal distribution
  const double phi2 = 0.97724986805182079279;
  check_close(Device::get(output), {0, phi1, phi1 - 1, 2 * phi2});
  device.run(ActivationForward{.type = ActivationType::gelu_tanh, .input = input, .output = output});
  const auto tanh_form = [](double x) {  // 0.5x(1 + tanh u) = x·σ(2u)
    const double u = std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x);
    return x / (1.0 + std::exp(-2.0 * u));
  };
  check_close(Device::get(output), {0, tanh_form(1), tanh_form(-1), tanh_form(2)});
  const View gated = device.put(zeros(2), {1, 2});
  device.run(
      ActivationForward{.type = ActivationType::swiglu, .input = device.put({0, 1, 5, 3}, {1, 4}), .output = gated});
  check_close(Device::get(gated), {0, 3 / (1 + std::exp(-1.0))});
  device.run(
      ActivationForward{.type = ActivationType::geglu, .input = device.put({0, 2, 5, 3}, {1, 4}), .output = gated});
  check_close(Device::get(gated), {0, 3 * tanh_form(2)});
}

TEST_CASE("activation_gradients_match_finite_differences") {
  for (const ActivationType type :
       {ActivationType::gelu, ActivationType::gelu_tanh, ActivationType::swiglu, ActivationType::geglu}) {
    CAPTURE(static_cast<int>(type));
    const std::int64_t columns = is_gated(type) ? 10 : 5;
    const Values input = normal("activation input", 3 * columns, 0.0, 2.0);
    const Values r = normal("activation r", 15);
    const auto loss = [&](const Values& x) {
      Oracle oracle;
      const View output = oracle.device.put(zeros(15), {3, 5});
      oracle.device.run(ActivationForward{.type = type, .input = oracle.device.put(x, {3, columns}), .output = output});
      return dot(Device::get(output), r);
    };
    Oracle oracle;
    Device& device = oracle.device;
    const View d_input = device.put(zeros(3 * columns), {3, columns});
    device.run(ActivationBackward{
        .type = type, .input = device.put(input, {3, columns}), .d_output = device.put(r, {3, 5}), .d_input = d_input});
    check_gradient("input", input, loss, Device::get(d_input));
  }
}

namespace {

Values rotated(const Values& values, std::int64_t heads, std::int64_t size, const Ids& positions, bool inverse = false,
               const RopeScaling& scaling = {}) {
  Oracle oracle;
  Device& device = oracle.device;
  const auto rows = static_cast<std::int64_t>(positions.size());
  const View view = device.put(values, {rows, heads * size});
  device.run(RopeRotate{.values = view,
                        .row_stride = heads * size,
                        .num_heads = heads,
                        .head_size = size,
                        .positions = device.put_ids(positions, {rows}),
                        .theta = 10000.0,
                        .inverse = inverse,
                        .scaling = scaling});
  return Device::get(view);
}

}  // namespace

TEST_CASE("rope_turns_pairs_of_the_two_halves") {
  // Head size 4: pairs (0,2) by position·1 and (1,3) by position/100.
  const Values result = rotated({1, 1, 0, 0}, 1, 4, {3});
  check_close(result, {std::cos(3.0), std::cos(0.03), std::sin(3.0), std::sin(0.03)});
  check_close(rotated({1, 2, 3, 4}, 1, 4, {0}), {1, 2, 3, 4}, 0.0);
}

TEST_CASE("rope_divides_all_frequencies_or_those_of_few_turns_in_the_original_context") {
  const Values input = {1, 1, 1, 0, 0, 0};
  const auto turned = [](const std::vector<double>& angles) {
    Values values;
    for (const double angle : angles) values.push_back(std::cos(angle));
    for (const double angle : angles) values.push_back(std::sin(angle));
    return values;
  };
  // Head size 6: frequencies 1, 10000^(-1/3) and 10000^(-2/3), which turn 20.4, 0.945 and 0.0439 times in 128 tokens.
  const double second = std::pow(10000.0, -1.0 / 3.0);
  const double third = second * second;
  check_close(rotated(input, 1, 6, {3}, false, {.factor = 4.0}), turned({0.75, 0.75 * second, 0.75 * third}));
  const RopeScaling scaling{
      .factor = 4.0, .low_frequency_factor = 0.5, .high_frequency_factor = 2.0, .original_context = 128.0};
  const double turns = 128.0 * second / (2.0 * std::numbers::pi);
  const double smooth = (turns - 0.5) / (2.0 - 0.5);
  CHECK((smooth > 0.0 && smooth < 1.0));
  const double between = (1.0 - smooth) * second / 4.0 + smooth * second;
  check_close(rotated(input, 1, 6, {3}, false, scaling), turned({3.0, 3.0 * between, 0.75 * third}));
  check_close(rotated(rotated(input, 1, 6, {3}, false, scaling), 1, 6, {3}, true, scaling), input);
}

TEST_CASE("rope_keeps_norms_depends_on_distance_only_and_is_undone_by_its_inverse") {
  const std::int64_t size = 16;
  const Values q = normal("rope q", 2 * size);
  const Values k = normal("rope k", 2 * size);
  const Values far = rotated(q, 2, size, {1000});
  CHECK(dot(far, far) == Near(dot(q, q)).epsilon(1e-12));
  check_close(rotated(far, 2, size, {1000}, true), q);
  const double near_score = dot(rotated(q, 2, size, {17}), rotated(k, 2, size, {5}));
  const double far_score = dot(rotated(q, 2, size, {4017}), rotated(k, 2, size, {4005}));
  CHECK(near_score == Near(far_score).epsilon(1e-10));
  CHECK(std::fabs(near_score - dot(rotated(q, 2, size, {18}), rotated(k, 2, size, {5}))) > 1e-3);
}

TEST_CASE("rope_inverse_is_its_gradient") {
  const Values input = normal("rope input", 24);
  const Values r = normal("rope r", 24);
  const Ids positions{3, 7};
  check_gradient(
      "values", input, [&](const Values& x) { return dot(rotated(x, 2, 6, positions), r); },
      rotated(r, 2, 6, positions, true));
}

TEST_CASE("caps_and_factors_are_what_they_say") {
  Oracle oracle;
  Device& device = oracle.device;
  const View input = device.put({0, 1, -30, 1000}, {4});
  const View output = device.put(zeros(4), {4});
  device.run(Scale{.input = input.reshape({2, 2}), .output = output.reshape({2, 2}), .factor = -0.5});
  check_close(Device::get(output), {0, -0.5, 15, -500});
  device.run(SoftCap{.input = input, .output = output, .cap = 30.0});
  check_close(Device::get(output), {0, 30 * std::tanh(1 / 30.0), -30 * std::tanh(1.0), 30});
  device.run(
      SoftCapBackward{.input = input, .d_output = device.put({2, 2, 2, 2}, {4}), .d_input = output, .cap = 30.0});
  const auto slope = [](double x) { return 1 / (std::cosh(x / 30.0) * std::cosh(x / 30.0)); };
  check_close(Device::get(output), {2, 2 * slope(1), 2 * slope(30), 0});
}

TEST_CASE("embedding_rows_are_looked_up_and_gradients_of_repeated_ids_add_up") {
  Oracle oracle;
  Device& device = oracle.device;
  const View output = device.put(zeros(6), {3, 2});
  const View ids = device.put_ids({2, 0, 2}, {3});
  const View positions = device.put_ids({0, 1, 1}, {3});
  device.run(EmbeddingForward{.table = device.put({1, 2, 3, 4, 5, 6}, {3, 2}),
                              .position_table = device.put({10, 20, 30, 40}, {2, 2}),
                              .ids = ids,
                              .positions = positions,
                              .output = output});
  CHECK(Device::get(output) == Values{15, 26, 31, 42, 35, 46});
  const View d_table = device.put({1, 1, 1, 1, 1, 1}, {3, 2});
  const View d_positions = device.put(zeros(4), {2, 2});
  device.run(EmbeddingBackward{.d_output = device.put({1, 2, 3, 4, 5, 6}, {3, 2}),
                               .ids = ids,
                               .positions = positions,
                               .d_table = d_table,
                               .d_position_table = d_positions});
  CHECK(Device::get(d_table) == Values{4, 5, 1, 1, 7, 9});
  CHECK(Device::get(d_positions) == Values{1, 2, 8, 10});
  const EmbeddingForward outside{.table = device.put({1, 2}, {1, 2}),
                                 .position_table = {},
                                 .ids = device.put_ids({0, 1, 0}, {3}),
                                 .positions = {},
                                 .output = output};
  CHECK_THROWS_AS(device.run(outside), BugError);
}

TEST_CASE("cross_entropy_sums_unmasked_rows_and_its_gradient_matches_finite_differences") {
  const Values logits = normal("logits", 4 * 5, 0.0, 2.0);
  const Ids targets{3, -1, 0, 4};
  const auto loss = [&](const Values& x) {
    Oracle oracle;
    double sum = 0;
    oracle.device.run(CrossEntropy{.logits = oracle.device.put(x, {4, 5}),
                                   .targets = oracle.device.put_ids(targets, {4}),
                                   .d_scale = 0,
                                   .loss_sum = number_at(sum)});
    return sum;
  };
  double expected = 0;
  for (const std::size_t n : {std::size_t{0}, std::size_t{2}, std::size_t{3}}) {
    double total = 0;
    for (std::size_t v = 0; v < 5; ++v) total += std::exp(logits[n * 5 + v]);
    expected -= std::log(std::exp(logits[n * 5 + static_cast<std::size_t>(targets[n])]) / total);
  }
  CHECK(loss(logits) == Near(expected).epsilon(1e-13));
  CHECK(loss(zeros(20)) == Near(3 * std::log(5.0)).epsilon(1e-14));

  Oracle oracle;
  double sum = 100;
  const View gradient = oracle.device.put(logits, {4, 5});
  oracle.device.run(CrossEntropy{
      .logits = gradient, .targets = oracle.device.put_ids(targets, {4}), .d_scale = 0.25, .loss_sum = number_at(sum)});
  CHECK(sum == Near(100 + expected).epsilon(1e-13));
  check_gradient(
      "logits", logits, [&](const Values& x) { return 0.25 * loss(x); }, Device::get(gradient));
  for (std::size_t v = 5; v < 10; ++v) CHECK(Device::get(gradient)[v] == 0.0);

  double ignored = 0;
  const CrossEntropy outside{.logits = gradient,
                             .targets = oracle.device.put_ids({0, 0, 0, 5}, {4}),
                             .d_scale = 0,
                             .loss_sum = number_at(ignored)};
  CHECK_THROWS_AS(oracle.device.run(outside), BugError);
}

TEST_CASE("adamw_steps_as_computed_by_hand_and_leaves_padding_alone") {
  Oracle oracle;
  Device& device = oracle.device;
  const View param = device.put({1, 2, 3}, {3});
  const View first = device.put({0, 0, 5}, {3});
  const View second = device.put({0, 0, 6}, {3});
  const UpdateSpan spans[] = {{0, 1, 0.1}, {1, 1, 0.0, 3.0}};
  StepScalars step{
      .learning_rate = 0.01, .gradient_scale = 0.5, .bias_correction1 = 0.1, .bias_correction2 = 0.05, .skip = 0};
  const AdamWStep op{.param = param,
                     .first_moment = first,
                     .second_moment = second,
                     .gradient = device.put({4, -8, 7}, {3}),
                     .spans = spans,
                     .beta1 = 0.9,
                     .beta2 = 0.95,
                     .epsilon = 0,
                     .step = record_of(step)};
  // The first step's direction is the gradient's sign: p - 0.01·(±1 + decay·p). Gradients are halved first.
  device.run(op);
  check_close(Device::get(param), {1 - 0.01 * (1 + 0.1), 2 + 3 * 0.01, 3});
  check_close(Device::get(first), {0.2, -0.4, 5});
  check_close(Device::get(second), {0.05 * 4, 0.05 * 16, 6});

  const Values before = Device::get(param);
  step.skip = 1;
  device.run(op);
  CHECK(Device::get(param) == before);
  check_close(Device::get(first), {0.2, -0.4, 5});
  check_close(Device::get(second), {0.2, 0.8, 6});

  // Second step, epsilon 1: m = 0.9·0.2 + 0.1·2, v = 0.95·0.2 + 0.05·4, corrections 1-0.81 and 1-0.9025.
  step = {.learning_rate = 0.1, .gradient_scale = 0.5, .bias_correction1 = 0.19, .bias_correction2 = 0.0975, .skip = 0};
  AdamWStep next = op;
  next.epsilon = 1;
  device.run(next);
  CHECK(Device::get(param)[0] ==
        Near(before[0] - 0.1 * ((0.38 / 0.19) / (std::sqrt(0.39 / 0.0975) + 1) + 0.1 * before[0])));
}

TEST_CASE("sgd_steps_against_the_gradient_with_decay") {
  Oracle oracle;
  Device& device = oracle.device;
  const View param = device.put({1, 2, 3}, {3});
  const UpdateSpan spans[] = {{1, 1, 0.5}, {2, 1, 0.5, 0.25}};
  StepScalars step{.learning_rate = 0.1, .gradient_scale = 2.0};
  const SgdStep op{.param = param, .gradient = device.put({9, 1, -1}, {3}), .spans = spans, .step = record_of(step)};
  device.run(op);
  check_close(Device::get(param), {1, 2 - 0.1 * (2 + 1), 3 - 0.25 * 0.1 * (-2 + 1.5)});
  step.skip = 1;
  device.run(op);
  check_close(Device::get(param), {1, 1.7, 3.0125});
}

TEST_CASE("small_operations_by_hand") {
  Oracle oracle;
  Device& device = oracle.device;
  const View a = device.put({1, 2, 3}, {3});
  device.run(Add{.a = a, .b = device.put({10, 20, 30}, {3}), .output = a});
  CHECK(Device::get(a) == Values{11, 22, 33});
  const ElementSpan spans[] = {{0, 1}, {1, 0}, {2, 2}};
  double squares[3] = {};
  device.run(SumsOfSquares{
      .values = device.put({3, 4, 5, 12}, {4}), .spans = spans, .results = View(squares, DType::f64, {3})});
  CHECK(squares[0] == 9);
  CHECK(squares[1] == 0);
  CHECK(squares[2] == 169);
  device.run(Fill{.output = a, .value = -2});
  CHECK(Device::get(a) == Values{-2, -2, -2});
  const View ids = device.put_ids({0, 0}, {2});
  device.run(Copy{.input = device.put_ids({5, -1}, {2}), .output = ids});
  CHECK(ids.as<std::int32_t>()[0] == 5);
  CHECK(ids.as<std::int32_t>()[1] == -1);
}

TEST_CASE("the_reference_computes_in_f32_or_f64_only") {
  CHECK(make_reference_backend(DType::f32)->compute_type() == DType::f32);
  CHECK(make_reference_backend(DType::f64)->description() == "reference F64");
  CHECK(make_reference_backend(DType::bf16)->compute_type() == DType::bf16);
  CHECK(make_reference_backend(DType::f16)->description() == "reference F16");
  CHECK_THROWS_AS(make_reference_backend(DType::i32), BugError);
}
