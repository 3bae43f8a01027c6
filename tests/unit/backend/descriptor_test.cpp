// Backend::run refuses every descriptor whose operands do not fit, whatever the device: one good call of each
// operation, then the same call with one thing wrong.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <string>

#include "refused_descriptors.h"
#include "support/numbers.h"

using namespace scaletrain;
using namespace scaletrain::parity;

TEST_CASE("linear_descriptors_are_checked") {
  SharedBuffers make;
  LinearForward forward;
  forward.weight.values = make.floats({3, 2});
  forward.input = make.floats({4, 2});
  forward.output = make.floats({4, 3});
  make.refuses(forward, "weight", [](auto& op) { op.weight.values = {}; });
  make.refuses(forward, "input", [&](auto& op) { op.input = make.floats({4, 3}); });
  make.refuses(forward, "input", [&](auto& op) { op.input = make.floats({8}); });
  make.refuses(forward, "input", [&](auto& op) { op.input = make.doubles({4, 2}); });
  make.refuses(forward, "output", [&](auto& op) { op.output = make.floats({3, 4}); });
  make.refuses(forward, "output", [](auto& op) { op.output = {}; });
  make.refuses(forward, "bias", [&](auto& op) { op.bias = make.floats({4}); });
  make.refuses(forward, "addend", [&](auto& op) { op.addend = make.floats({4, 2}); });
  make.refuses(forward, "output", [&](auto& op) {
    const View shared = make.floats({5, 3});
    op.addend = shared.rows(1, 4);
    op.output = shared.rows(0, 4);
  });
  make.refuses(forward, "activated", [&](auto& op) { op.activated = make.floats({4, 2}); });
  make.refuses(forward, "activated", [&](auto& op) { op.activated = make.doubles({4, 3}); });
  make.refuses(forward, "activated", [](auto& op) { op.activated = op.output; });
  make.refuses(forward, "activated", [&](auto& op) {
    op.activated = make.floats({4, 3});
    op.activation = ActivationType::swiglu;
  });
  LinearBackwardInput input;
  input.weight.values = make.floats({3, 2});
  input.d_output = make.floats({4, 3});
  input.d_input = make.floats({4, 2});
  make.refuses(input, "d_output", [&](auto& op) { op.d_output = make.floats({4, 2}); });
  make.refuses(input, "d_input", [&](auto& op) { op.d_input = make.floats({4, 3}); });
  LinearBackwardWeight weight;
  weight.input = make.floats({4, 2});
  weight.d_output = make.floats({4, 3});
  weight.d_weight = make.floats({3, 2});
  make.refuses(weight, "d_output", [&](auto& op) { op.d_output = make.floats({5, 3}); });
  make.refuses(weight, "d_weight", [&](auto& op) { op.d_weight = make.floats({2, 3}); });
  make.refuses(weight, "d_bias", [&](auto& op) { op.d_bias = make.floats({2}); });
}

TEST_CASE("product_descriptors_are_checked") {
  SharedBuffers make;
  MatrixProduct product;
  product.a = make.floats({4, 2});
  product.b = make.floats({2, 3});
  product.addend = make.floats({4, 3});
  product.output = make.floats({4, 3});
  make.refuses(product, "a", [](auto& op) { op.a = {}; });
  make.refuses(product, "a", [&](auto& op) { op.a = make.doubles({4, 2}); });
  make.refuses(product, "a", [&](auto& op) {
    op.a = make.floats({4, 0});
    op.b = make.floats({0, 3});
  });
  make.refuses(product, "b", [&](auto& op) { op.b = make.floats({3, 2}); });
  make.refuses(product, "b", [](auto& op) { op.a_is_transposed = true; });
  make.refuses(product, "b", [](auto& op) { op.b_is_transposed = true; });
  make.refuses(product, "output", [&](auto& op) { op.output = make.floats({3, 4}); });
  make.refuses(product, "addend", [&](auto& op) { op.addend = make.floats({3}); });
  make.refuses(product, "factor", [](auto& op) { op.factor = INFINITY; });
  make.refuses(product, "addend_factor", [](auto& op) { op.addend_factor = NAN; });
  make.refuses(product, "output", [&](auto& op) {
    const View shared = make.floats({5, 3});
    op.addend = shared.rows(1, 4);
    op.output = shared.rows(0, 4);
  });
  MatrixProduct square;
  square.a = square.b = make.floats({3, 3});
  square.output = make.floats({3, 3});
  make.refuses(square, "output", [](auto& op) {
    op.output = View(const_cast<void*>(op.a.data()), DType::f32, {3, 3});
  });
}

TEST_CASE("norm_descriptors_are_checked") {
  SharedBuffers make;
  NormForward forward;
  forward.input = make.floats({4, 6});
  forward.weight = make.floats({6});
  forward.output = make.floats({4, 6});
  forward.mean = make.floats({4});
  forward.rstd = make.floats({4});
  make.refuses(forward, "weight", [&](auto& op) { op.weight = make.floats({4}); });
  make.refuses(forward, "bias", [&](auto& op) { op.bias = make.floats({5}); });
  make.refuses(forward, "output", [&](auto& op) { op.output = make.floats({6, 4}); });
  make.refuses(forward, "output", [](auto& op) {
    op.output = View(const_cast<void*>(op.input.data()), DType::f32, {4, 6});
  });
  make.refuses(forward, "mean", [](auto& op) { op.mean = {}; });
  make.refuses(forward, "mean", [](auto& op) { op.type = NormType::rmsnorm; });
  make.refuses(forward, "rstd", [&](auto& op) { op.rstd = make.floats({5}); });
  make.refuses(forward, "epsilon", [](auto& op) { op.epsilon = -1; });
  make.refuses(forward, "output", [](auto& op) { op.input_rows = {2, 12}; });
  make.refuses(forward, "input", [](auto& op) { op.input_rows = op.output_rows = {3, 18}; });
  make.refuses(forward, "input", [](auto& op) { op.input_rows = {2, 11}, op.output_rows = {2, 12}; });
  make.refuses(forward, "output", [](auto& op) { op.input_rows = {2, 12}, op.output_rows = {2, 11}; });
  NormBackwardInput input;
  input.d_output = make.floats({4, 6});
  input.input = make.floats({4, 6});
  input.weight = make.floats({6});
  input.mean = make.floats({4});
  input.rstd = make.floats({4});
  input.d_input = make.floats({4, 6});
  make.refuses(input, "d_output", [&](auto& op) { op.d_output = make.floats({4, 5}); });
  make.refuses(input, "addend", [&](auto& op) { op.addend = make.floats({1, 6}); });
  make.refuses(input, "mean", [](auto& op) { op.mean = {}; });
  make.refuses(input, "d_input", [&](auto& op) { op.d_input = make.floats({24}); });
  make.refuses(input, "d_output", [](auto& op) { op.input_rows = op.d_input_rows = {2, 12}; });
  make.refuses(input, "addend", [&](auto& op) {
    op.input_rows = op.d_output_rows = op.d_input_rows = {2, 12};
    op.addend = make.floats({4, 6});
  });
  make.refuses(input, "d_input", [](auto& op) {
    op.input_rows = op.d_output_rows = {2, 12};
    op.d_input_rows = {2, 14};
    op.d_output = op.d_input;
  });
  NormBackwardWeight weight;
  weight.d_output = make.floats({4, 6});
  weight.input = make.floats({4, 6});
  weight.mean = make.floats({4});
  weight.rstd = make.floats({4});
  weight.d_weight = make.floats({6});
  make.refuses(weight, "d_weight", [](auto& op) { op.d_weight = {}; });
  make.refuses(weight, "d_bias", [&](auto& op) { op.d_bias = make.floats({4}); });
  make.refuses(weight, "rstd", [&](auto& op) { op.rstd = make.doubles({4}); });
  make.refuses(weight, "d_output", [](auto& op) { op.input_rows = {2, 12}; });
}

TEST_CASE("activation_and_embedding_descriptors_are_checked") {
  SharedBuffers make;
  ActivationForward forward;
  forward.input = make.floats({3, 4});
  forward.output = make.floats({3, 4});
  make.refuses(forward, "input", [](auto& op) { op.type = ActivationType::swiglu; });
  make.refuses(forward, "output", [](auto& op) { op.output = {}; });
  ActivationBackward backward;
  backward.type = ActivationType::swiglu;
  backward.input = make.floats({3, 8});
  backward.d_output = make.floats({3, 4});
  backward.d_input = make.floats({3, 8});
  make.refuses(backward, "input", [](auto& op) { op.type = ActivationType::gelu; });
  make.refuses(backward, "d_input", [&](auto& op) { op.d_input = make.floats({3, 4}); });
  Dropout drop{.input = make.floats({4, 6}),
               .output = make.floats({4, 6}),
               .mask = {.probability = 0.1, .samples = make.numbers({3})},
               .sample_rows = 2,
               .first_row = 1,
               .columns = 6};
  make.refuses(drop, "mask.probability", [](auto& op) { op.mask.probability = 0.0; });
  make.refuses(drop, "mask.probability", [](auto& op) { op.mask.probability = 1.0; });
  make.refuses(drop, "mask.samples", [](auto& op) { op.mask.samples = {}; });
  make.refuses(drop, "mask.samples", [&](auto& op) { op.mask.samples = make.ids({3}); });
  make.refuses(drop, "mask.samples", [&](auto& op) { op.mask.samples = make.numbers({2}); });
  make.refuses(drop, "first_column", [](auto& op) { op.first_column = 1; });
  make.refuses(drop, "sample_rows", [](auto& op) { op.sample_rows = 0; });
  make.refuses(drop, "first_row", [](auto& op) { op.first_row = -1; });
  make.refuses(drop, "addend", [&](auto& op) { op.addend = make.floats({4, 5}); });
  make.refuses(drop, "output", [&](auto& op) { op.output = make.floats({4, 5}); });
  SoftCap cap{.input = make.floats({5}), .output = make.floats({5}), .cap = 2.0};
  make.refuses(cap, "cap", [](auto& op) { op.cap = 0.0; });
  make.refuses(cap, "input", [&](auto& op) { op.input = make.ids({5}); });
  SoftCapBackward uncap{
      .input = make.floats({5}), .d_output = make.floats({5}), .d_input = make.floats({5}), .cap = 2.0};
  make.refuses(uncap, "cap", [](auto& op) { op.cap = -1.0; });
  make.refuses(uncap, "d_output", [&](auto& op) { op.d_output = make.floats({4}); });
  EmbeddingForward lookup;
  lookup.table = make.floats({5, 2});
  lookup.ids = make.ids({3});
  lookup.output = make.floats({3, 2});
  make.refuses(lookup, "ids", [&](auto& op) { op.ids = make.floats({3}); });
  make.refuses(lookup, "ids", [&](auto& op) { op.ids = make.ids({4}); });
  make.refuses(lookup, "table", [&](auto& op) { op.table = make.floats({5, 3}); });
  make.refuses(lookup, "positions", [&](auto& op) { op.position_table = make.floats({5, 2}); });
  make.refuses(lookup, "first_id", [](auto& op) { op.first_id = 1; });
  make.refuses(lookup, "first_id", [](auto& op) {
    op.first_id = 2;
    op.vocabulary = 6;
  });
  EmbeddingBackward scatter;
  scatter.d_output = make.floats({3, 2});
  scatter.ids = make.ids({3});
  scatter.d_table = make.floats({5, 2});
  make.refuses(scatter, "d_table", [](auto& op) { op.d_table = {}; });
  make.refuses(scatter, "positions", [&](auto& op) { op.d_position_table = make.floats({5, 2}); });
}

TEST_CASE("rope_and_attention_descriptors_are_checked") {
  SharedBuffers make;
  RopeRotate rope;
  rope.values = make.floats({3, 8});
  rope.row_stride = 8;
  rope.num_heads = 2;
  rope.head_size = 4;
  rope.positions = make.ids({3});
  make.refuses(rope, "values", [](auto& op) { op.row_stride = 7; });
  make.refuses(rope, "values", [&](auto& op) { op.positions = make.ids({4}); });
  make.refuses(rope, "head_size", [](auto& op) { op.head_size = 3; });
  make.refuses(rope, "theta", [](auto& op) { op.theta = 0; });
  make.refuses(rope, "scaling.factor", [](auto& op) { op.scaling.factor = 0; });
  make.refuses(rope, "scaling.low_frequency_factor", [](auto& op) { op.scaling.low_frequency_factor = 4; });
  make.refuses(rope, "scaling.original_context", [](auto& op) { op.scaling.original_context = -1; });
  make.refuses(rope, "positions", [&](auto& op) { op.positions = make.floats({3}); });

  AttentionForward forward;
  forward.shape = {.batch = 1, .num_queries = 3, .num_keys = 3, .heads = 4, .kv_heads = 2, .head_size = 2};
  forward.query = {make.floats({3, 8}), 8};
  forward.key = {make.floats({3, 4}), 4};
  forward.value = {make.floats({3, 4}), 4};
  forward.output = {make.floats({3, 8}), 8};
  make.refuses(forward, "shape.heads", [](auto& op) { op.shape.kv_heads = 3; });
  make.refuses(forward, "shape.kv_heads", [](auto& op) { op.shape.kv_heads = 0; });
  make.refuses(forward, "shape.first_query", [](auto& op) { op.shape.first_key = 1; });
  make.refuses(forward, "shape.num_keys", [](auto& op) { op.shape.num_keys = 0; });
  make.refuses(forward, "shape.window", [](auto& op) { op.shape.window = -1; });
  make.refuses(forward, "shape.softcap", [](auto& op) { op.shape.softcap = -1.0; });
  make.refuses(forward, "mask.probability", [](auto& op) { op.dropout.mask.probability = 1.5; });
  make.refuses(forward, "mask.samples", [](auto& op) { op.dropout.mask.probability = 0.5; });
  make.refuses(forward, "query", [](auto& op) { op.query.row_stride = 7; });
  make.refuses(forward, "key", [](auto& op) { op.shape.num_keys = 4; });
  make.refuses(forward, "value", [](auto& op) { op.value = {}; });
  make.refuses(forward, "output", [&](auto& op) { op.output.values = make.doubles({3, 8}); });
  make.refuses(forward, "document_start", [&](auto& op) { op.document_start = make.ids({3, 1}); });
  make.refuses(forward, "log_sum_exp", [&](auto& op) { op.log_sum_exp = make.floats({1, 3, 4}); });

  AttentionBackward backward;
  backward.shape = forward.shape;
  backward.query = forward.query;
  backward.key = forward.key;
  backward.value = forward.value;
  backward.output = {make.floats({3, 8}), 8};
  backward.d_output = {make.floats({3, 8}), 8};
  backward.log_sum_exp = make.floats({1, 4, 3});
  backward.d_query = {make.floats({3, 8}), 8};
  backward.d_key = {make.floats({3, 4}), 4};
  backward.d_value = {make.floats({3, 4}), 4};
  make.refuses(backward, "mask.samples", [](auto& op) { op.dropout.mask.probability = 0.5; });
  make.refuses(backward, "log_sum_exp", [](auto& op) { op.log_sum_exp = {}; });
  make.refuses(backward, "d_output", [](auto& op) { op.d_output = {}; });
  make.refuses(backward, "d_query", [&](auto& op) { op.d_query.values = make.floats({2, 8}); });
  make.refuses(backward, "d_key", [](auto& op) { op.d_key.row_stride = 3; });
  make.refuses(backward, "d_value", [](auto& op) { op.d_value.values = {}; });
  make.refuses(backward, "workspace", [&](auto& op) { op.workspace = make.floats({3, 4}); });
  make.refuses(backward, "workspace", [&](auto& op) { op.workspace = make.ids({12}); });
}

TEST_CASE("loss_and_elementwise_descriptors_are_checked") {
  SharedBuffers make;
  double sum = 0;
  CrossEntropy loss;
  loss.logits = make.floats({3, 5});
  loss.targets = make.ids({3});
  loss.loss_sum = number_at(sum);
  make.refuses(loss, "targets", [&](auto& op) { op.targets = make.ids({5}); });
  make.refuses(loss, "targets", [](auto& op) { op.targets = {}; });
  make.refuses(loss, "loss_sum", [](auto& op) { op.loss_sum = {}; });
  make.refuses(loss, "loss_sum", [&](auto& op) { op.loss_sum = make.floats({1}); });
  make.refuses(loss, "logits", [&](auto& op) { op.logits = make.floats({15}); });
  make.refuses(loss, "shape.label_smoothing", [](auto& op) { op.shape.label_smoothing = 1.0; });
  make.refuses(loss, "shape.label_smoothing", [](auto& op) { op.shape.label_smoothing = -0.1; });
  make.refuses(loss, "shape.z_loss", [](auto& op) { op.shape.z_loss = -1e-4; });
  SoftmaxStatistics statistics;
  statistics.logits = make.floats({3, 5});
  statistics.targets = make.ids({3});
  statistics.first_class = 2;
  statistics.vocabulary = 7;
  statistics.statistics = make.floats({3, 3});
  make.refuses(statistics, "first_class", [](auto& op) { op.vocabulary = 6; });
  make.refuses(statistics, "first_class", [](auto& op) { op.first_class = -1; });
  make.refuses(statistics, "targets", [&](auto& op) { op.targets = make.ids({5}); });
  make.refuses(statistics, "statistics", [&](auto& op) { op.statistics = make.floats({3, 2}); });
  CrossEntropyParts parts;
  parts.logits = make.floats({3, 5});
  parts.targets = make.ids({3});
  parts.first_class = 2;
  parts.vocabulary = 7;
  parts.statistics = make.floats({2, 3, 3});
  parts.loss_sum = number_at(sum);
  make.refuses(parts, "first_class", [](auto& op) { op.first_class = 3; });
  make.refuses(parts, "shape.label_smoothing", [](auto& op) { op.shape.label_smoothing = 1.0; });
  make.refuses(parts, "shape.z_loss", [](auto& op) { op.shape.z_loss = std::numeric_limits<double>::infinity(); });
  make.refuses(parts, "statistics", [&](auto& op) { op.statistics = make.floats({2, 4, 3}); });
  make.refuses(parts, "statistics", [&](auto& op) { op.statistics = make.floats({6, 3}); });
  make.refuses(parts, "targets", [](auto& op) { op.targets = {}; });
  make.refuses(parts, "loss_sum", [](auto& op) { op.loss_sum = {}; });
  make.refuses(parts, "loss_sum", [&](auto& op) { op.loss_sum = make.doubles({2}); });
  Add add;
  add.a = make.floats({6});
  add.b = make.floats({6});
  add.output = make.floats({6});
  make.refuses(add, "b", [&](auto& op) { op.b = make.floats({2, 3}); });
  make.refuses(add, "output", [&](auto& op) { op.output = make.doubles({6}); });
  Scale scale{.input = make.floats({2, 3}), .output = make.floats({2, 3}), .factor = 2.0};
  make.refuses(scale, "input", [&](auto& op) { op.input = make.floats({6}); });
  make.refuses(scale, "output", [&](auto& op) { op.output = make.floats({3, 2}); });
  make.refuses(scale, "input_stride", [](auto& op) { op.input_stride = 2; });
  make.refuses(scale, "output_stride", [](auto& op) { op.output_stride = 2; });
  make.refuses(scale, "factor", [](auto& op) { op.factor = std::numeric_limits<double>::quiet_NaN(); });
  make.refuses(scale, "factor", [](auto& op) { op.factor = HUGE_VAL; });
  Copy copy;
  copy.input = make.floats({6});
  copy.output = make.doubles({2, 3});
  make.refuses(copy, "output", [&](auto& op) { op.output = make.floats({7}); });
  make.refuses(copy, "output", [&](auto& op) { op.output = make.ids({6}); });
  make.refuses(copy, "output", [](auto& op) { op.output = View(const_cast<void*>(op.input.data()), DType::f32, {6}); });
  Fill fill;
  fill.output = make.floats({6});
  make.refuses(fill, "output", [&](auto& op) { op.output = make.ids({6}); });
  make.refuses(fill, "output", [](auto& op) { op.output = {}; });
  const ElementSpan spans[] = {{0, 3}, {4, 2}};
  const ElementSpan beyond[] = {{0, 3}, {4, 3}};
  const ElementSpan overlapping[] = {{0, 3}, {2, 2}};
  const ElementSpan descending[] = {{4, 2}, {0, 3}};
  const ElementSpan negative[] = {{0, 3}, {4, -1}};
  SumsOfSquares squares;
  squares.values = make.floats({6});
  squares.spans = spans;
  squares.results = make.doubles({2});
  make.refuses(squares, "results", [](auto& op) { op.results = {}; });
  make.refuses(squares, "results", [&](auto& op) { op.results = make.floats({2}); });
  make.refuses(squares, "results", [&](auto& op) { op.results = make.doubles({1}); });
  make.refuses(squares, "results", [&](auto& op) { op.results = make.doubles({3}); });
  make.refuses(squares, "results",
               [](auto& op) { op.results = View(const_cast<void*>(op.values.data()), DType::f64, {2}); });
  make.refuses(squares, "values", [&](auto& op) { op.values = make.doubles({6}); });
  make.refuses(squares, "values", [&](auto& op) { op.values = make.floats({2, 3}); });
  make.refuses(squares, "spans", [&](auto& op) { op.spans = beyond; });
  make.refuses(squares, "spans", [&](auto& op) { op.spans = overlapping; });
  make.refuses(squares, "spans", [&](auto& op) { op.spans = descending; });
  make.refuses(squares, "spans", [&](auto& op) { op.spans = negative; });
}

TEST_CASE("kernels_refuse_memory_that_is_not_the_devices") {
  SharedBuffers make;
  Add add;
  add.a = make.floats({4});
  add.b = make.floats({4});
  add.output = make.floats({4});
  const auto elsewhere = [](const ConstView& view, Space space) {
    return View(const_cast<void*>(view.data()), view.dtype(), view.shape(), space);
  };
  make.refuses(add, "a", [&](auto& op) { op.a = elsewhere(op.a, Space::device); });
  make.refuses(add, "b", [&](auto& op) { op.b = elsewhere(op.b, Space::pinned); });
  make.refuses(add, "output", [&](auto& op) { op.output = elsewhere(op.output, Space::device); });
}

TEST_CASE("copies_are_checked") {
  const auto backend = make_reference_backend(DType::f32);
  const auto stream = backend->make_stream();
  std::array<std::int32_t, 6> from{1, 2, 3, 4, 5, 6};
  std::array<std::int32_t, 6> to{};
  const ConstView source(from.data(), DType::i32, {2, 3});
  const View target(to.data(), DType::i32, {6});
  backend->copy(*stream, source, target);
  CHECK(to == from);
  backend->copy(*stream, ConstView(from.data(), DType::i32, {6}, Space::pinned), target);
  CHECK_NOTHROW(backend->copy(*stream, ConstView(nullptr, DType::i32, {0}), View(nullptr, DType::i32, {0})));
  const auto refused = [&](const ConstView& a, const View& b) {
    try {
      backend->copy(*stream, a, b);
    } catch (const BugError& error) {
      return std::string(error.what()).find("copy.") != std::string::npos;
    }
    return false;
  };
  CHECK(refused(source, target.rows(0, 5)));
  CHECK(refused(source, View(to.data(), DType::f32, {6})));
  CHECK(refused(ConstView(nullptr, DType::i32, {6}), target));
  CHECK(refused(source, View(nullptr, DType::i32, {6})));
  CHECK(refused(target.rows(0, 3), target.rows(2, 3)));
  CHECK(refused(ConstView(from.data(), DType::i32, {6}, Space::device), target));
  CHECK(refused(source, View(to.data(), DType::i32, {6}, Space::device)));
}
