// Linear maps and embeddings: all are linear in each operand, so the scale of a result is the root of the same
// operation on the squares of its operands.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include <doctest/doctest.h>

#include "backend/cuda_module.h"
#include "cases.h"
#include "plain_reference.h"

namespace scaletrain::parity {

namespace {

struct LinearExtent {
  std::int64_t rows = 0, inputs = 0, outputs = 0;
};

// So many outputs for its rows that floats' forward multiplies the weight's rows as they lie: without bias or addend,
// as its index has it.
constexpr LinearExtent turned_extent{100, 70, 1700};

std::vector<LinearExtent> linear_extents() {
  return {{1, 1, 1},       {1, 7, 1},       {7, 1, 1},       {1, 1, 7},       {2, 2, 2},       {3, 5, 7},
          {5, 3, 2},       {0, 4, 3},       {1, 64, 64},     {13, 17, 19},    {16, 16, 16},    {15, 17, 33},
          {31, 32, 33},    {32, 31, 31},    {33, 33, 17},    {1, 129, 127},   {64, 64, 64},    {63, 65, 64},
          {65, 63, 129},   {127, 3, 128},   {128, 127, 5},   {129, 128, 1},   {2, 257, 255},   {4, 1009, 3},
          {1, 2048, 11},   {3, 2047, 2},    {257, 2, 31},    {512, 5, 9},     {511, 16, 4},    {1, 31, 1031},
          {100, 96, 288},  {37, 101, 103},  {17, 255, 257},  {128, 64, 192},  {700, 50, 60},   {300, 130, 250},
          {9, 800, 500},   {6, 2100, 70},   {5, 1100, 2600}, {5, 1030, 2500}, {520, 1700, 20}, {600, 1650, 10},
          {530, 200, 210}, {530, 330, 210}, {257, 70, 1000}, {90, 1030, 40},  {300, 330, 500}, {270, 64, 700},
          turned_extent,   {33, 520, 540},  {530, 340, 330}, {5500, 3, 5},    {40, 810, 850}};
}

// Maps with an activation: few rows and several tiles, gates that end where a panel does (256) and that do not. Two of
// each, since a half has every other case.
std::vector<LinearExtent> activated_extents() {
  std::vector<LinearExtent> extents;
  for (const std::int64_t outputs : {1001, 512, 130, 333}) {
    for (const std::int64_t rows : {600, 3}) {
      extents.push_back({rows, 40, outputs});
      extents.push_back({rows, 33, outputs});
    }
  }
  return extents;
}

std::string name_of(const LinearExtent& e) {
  return std::to_string(e.rows) + "x" + std::to_string(e.inputs) + "->" + std::to_string(e.outputs);
}

// Runs a case's call on the squares of its operands: run(device, operands) must be linear in each.
template <class Operands, class Run>
std::vector<Values> scales_by_squares(const Operands& operands, const Run& run) {
  const auto reference = make_plain_reference();
  Device device(*reference);
  std::vector<Values> scales;
  for (const Output& output : run(device, operands.squared()))
    scales.push_back(map(output.values, [](double v) { return std::sqrt(v); }));
  return scales;
}

template <class Operands, class Run>
Case linear_case(const std::string& name, double reduction_length, const Operands& operands, const Run& run) {
  Case c;
  c.name = name;
  c.reduction_length = std::max(1.0, reduction_length);
  c.run = [operands, run](Device& device) { return run(device, operands); };
  c.scales = scales_by_squares(operands, run);
  return c;
}

enum class Addend { none, separate, in_place };

struct LinearOperands {
  LinearExtent extent;
  bool packed = false;
  bool with_bias = false;
  Addend addend = Addend::none;
  std::optional<ActivationType> activation;
  Values weight, bias, input, d_output, rows;  // rows: the addend [N,O], or what d_weight [O,I] holds before

  // [N,O], by absolute value.
  Values added_to_products() const {
    Values added(static_cast<std::size_t>(extent.rows * extent.outputs));
    for (std::size_t i = 0; i < added.size(); ++i)
      added[i] =
          (with_bias ? std::fabs(bias[i % bias.size()]) : 0.0) + (addend != Addend::none ? std::fabs(rows[i]) : 0.0);
    return added;
  }
  // What the last outputs, which fill no cuda_row_alignment, have in d_input [N,I], by absolute value: padded rows
  // leave them to a product of their own.
  Values of_last_classes() const {
    Values sums(static_cast<std::size_t>(extent.rows * extent.inputs));
    for (std::int64_t n = 0; n < extent.rows; ++n)
      for (std::int64_t i = 0; i < extent.inputs; ++i) {
        double sum = 0;
        for (std::int64_t o = extent.outputs / cuda_row_alignment * cuda_row_alignment; o < extent.outputs; ++o)
          sum += d_output[static_cast<std::size_t>(n * extent.outputs + o)] *
                 weight[static_cast<std::size_t>(o * extent.inputs + i)];
        sums[static_cast<std::size_t>(n * extent.inputs + i)] = std::fabs(sum);
      }
    return sums;
  }
  LinearOperands squared() const {
    LinearOperands result = *this;
    for (Values* values : {&result.weight, &result.bias, &result.input, &result.d_output, &result.rows})
      *values = map(*values, square);
    return result;
  }
};

LinearOperands linear_operands(std::size_t index, const LinearExtent& e, const std::string& operation) {
  const std::string key = operation + std::to_string(index);
  LinearOperands o;
  o.extent = e;
  o.packed = index % 4 == 1 || index % 4 == 2;
  o.with_bias = index / 2 % 2 == 1;
  o.addend = static_cast<Addend>(index % 3);
  o.weight = normal(key + "weight", e.outputs * e.inputs, 0.0, 0.5);
  o.bias = normal(key + "bias", e.outputs);
  o.input = normal(key + "input", e.rows * e.inputs);
  o.d_output = normal(key + "d_output", e.rows * e.outputs, 0.1, 1.0);
  return o;
}

// One with a gate where the outputs are pairs.
ActivationType activation_of(std::size_t index, const LinearExtent& e) {
  if (e.outputs % 2 == 0) return index / 2 % 2 == 0 ? ActivationType::swiglu : ActivationType::geglu;
  return index / 2 % 2 == 0 ? ActivationType::gelu : ActivationType::gelu_tanh;
}

View put_activated(Device& device, const LinearOperands& o) {
  const LinearExtent& x = o.extent;
  const std::int64_t features = is_gated(*o.activation) ? x.outputs / 2 : x.outputs;
  return device.put(Values(static_cast<std::size_t>(x.rows * features), 7.0), {x.rows, features});
}

// What the map made of its output, less what the operation makes of it by itself: nothing.
Output distance_of_activations(Device& device, const LinearOperands& o, const View& output, const View& activated) {
  const View alone = put_activated(device, o);
  device.run(ActivationForward{.type = *o.activation, .input = output, .output = alone});
  Values distance = Device::get(activated);
  const Values expected = Device::get(alone);
  for (std::size_t i = 0; i < distance.size(); ++i) distance[i] -= expected[i];
  return {"activated", distance};
}

}  // namespace

// The activation is not linear, so that not the operands' squares give it a scale: it is compared with itself.
std::vector<Case> linear_forward_cases() {
  std::vector<Case> cases;
  const auto add = [&](const LinearExtent& e, bool is_activated) {
    LinearOperands operands = linear_operands(cases.size(), e, "linear_forward");
    operands.rows = normal("linear_forward addend" + name_of(e), e.rows * e.outputs);
    if (is_activated) operands.activation = activation_of(cases.size(), e);
    const auto run = [](Device& device, const LinearOperands& o) {
      const LinearExtent& x = o.extent;
      const View activated = o.activation ? put_activated(device, o) : View();
      const bool is_plain = o.addend == Addend::none && !o.activation;
      const View output =
          is_plain ? device.put_padded(o.rows, x.rows, x.outputs) : device.put(o.rows, {x.rows, x.outputs});
      View addend;
      if (o.addend == Addend::separate) addend = device.put(o.rows, {x.rows, x.outputs});
      if (o.addend == Addend::in_place) addend = output;
      device.run(LinearForward{.weight = device.put_weight(o.weight, {x.outputs, x.inputs}, o.packed),
                               .bias = o.with_bias ? device.put(o.bias, {x.outputs}) : View(),
                               .input = device.put(o.input, {x.rows, x.inputs}),
                               .addend = addend,
                               .output = output,
                               .activation = o.activation.value_or(ActivationType::gelu),
                               .activated = activated});
      std::vector<Output> outputs{{"output", Device::get(output, x.outputs)}};
      if (o.activation) outputs.push_back(distance_of_activations(device, o, output, activated));
      return outputs;
    };
    if (e.outputs == turned_extent.outputs) REQUIRE((!operands.with_bias && operands.addend == Addend::none));
    Case& added = cases.emplace_back(linear_case(name_of(e), static_cast<double>(e.inputs), operands, run));
    added.epilogue = operands.added_to_products();
    if (is_activated) added.scales[1].assign(added.scales[1].size(), untouched);
  };
  for (const LinearExtent& e : linear_extents()) add(e, false);
  for (const LinearExtent& e : activated_extents()) add(e, true);
  return cases;
}

std::vector<Case> linear_backward_input_cases() {
  std::vector<Case> cases;
  for (const LinearExtent& e : linear_extents()) {
    const auto run = [](Device& device, const LinearOperands& o) {
      const LinearExtent& x = o.extent;
      const View d_input = device.put(Values(static_cast<std::size_t>(x.rows * x.inputs), 7.0), {x.rows, x.inputs});
      device.run(LinearBackwardInput{.weight = device.put_weight(o.weight, {x.outputs, x.inputs}, o.packed),
                                     .d_output = o.packed ? device.put(o.d_output, {x.rows, x.outputs})
                                                          : device.put_padded(o.d_output, x.rows, x.outputs),
                                     .d_input = d_input});
      return std::vector<Output>{{"d_input", Device::get(d_input)}};
    };
    const LinearOperands operands = linear_operands(cases.size(), e, "linear_backward_input");
    cases.push_back(linear_case(name_of(e), static_cast<double>(e.outputs), operands, run));
    if (!operands.packed) cases.back().epilogue = operands.of_last_classes();
  }
  return cases;
}

namespace {

// output [M,N] of a [M,K] and b [K,N], which may be one matrix.
struct ProductOperands {
  std::int64_t rows = 0, depth = 0, columns = 0;
  bool a_is_transposed = false, b_is_transposed = false;
  bool b_is_a = false, addend_is_a = false;
  Addend addend = Addend::none;
  double factor = 1.0, addend_factor = 1.0;
  Values a{}, b{}, added{};

  ProductOperands squared() const {
    ProductOperands result = *this;
    for (Values* values : {&result.a, &result.b, &result.added}) *values = map(*values, square);
    result.factor = square(factor);
    result.addend_factor = square(addend_factor);
    return result;
  }
};

std::vector<Output> run_product(Device& device, const ProductOperands& o) {
  const View output = device.put(o.added, {o.rows, o.columns});
  const View a = device.put(o.a, o.a_is_transposed ? Shape{o.depth, o.rows} : Shape{o.rows, o.depth});
  View addend;
  if (o.addend == Addend::separate) addend = o.addend_is_a ? a : device.put(o.added, {o.rows, o.columns});
  if (o.addend == Addend::in_place) addend = output;
  const Shape of_b = o.b_is_transposed ? Shape{o.columns, o.depth} : Shape{o.depth, o.columns};
  device.run(MatrixProduct{.a = a,
                           .b = o.b_is_a ? a : device.put(o.b, of_b),
                           .addend = addend,
                           .output = output,
                           .a_is_transposed = o.a_is_transposed,
                           .b_is_transposed = o.b_is_transposed,
                           .factor = o.factor,
                           .addend_factor = o.addend_factor});
  return {{"output", Device::get(output)}};
}

}  // namespace

// Whether operands are transposed, what is added and by which factors goes by the index. bf16, which has every other
// case, has sums of several parts with every way to add. Then what Newton-Schulz iterations multiply: a matrix by its
// own transpose, either way, and by itself, with itself as the addend.
std::vector<Case> matrix_product_cases() {
  std::vector<Case> cases;
  const auto add = [&](const ProductOperands& o) {
    const std::string name = std::to_string(o.rows) + "x" + std::to_string(o.depth) + "x" + std::to_string(o.columns) +
                             (o.a_is_transposed ? " a transposed" : "") + (o.b_is_transposed ? " b transposed" : "") +
                             (o.b_is_a ? " of one matrix" : "");
    Case& added = cases.emplace_back(linear_case(name, static_cast<double>(o.depth), o, run_product));
    for (const double value : o.addend_is_a ? o.a : o.added)
      added.epilogue.push_back(o.addend == Addend::none ? 0.0 : std::fabs(o.addend_factor * value));
  };
  constexpr LinearExtent extents[] = {
      {1, 1, 1},      {7, 1, 1},      {1, 7, 1},       {1, 1, 7},      {2, 2, 2},       {3, 5, 7},      {5, 3, 2},
      {0, 4, 3},      {4, 3, 0},      {1, 64, 64},     {13, 17, 19},   {16, 16, 16},    {15, 17, 33},   {31, 32, 33},
      {33, 33, 17},   {64, 64, 64},   {65, 63, 129},   {127, 3, 128},  {129, 128, 1},   {2, 257, 255},  {4, 1009, 3},
      {257, 2, 31},   {50, 2049, 33}, {100, 96, 288},  {6, 2100, 70},  {300, 130, 250}, {600, 50, 20},  {50, 40, 1100},
      {90, 1030, 40}, {270, 64, 700}, {20, 1700, 300}, {530, 70, 260}, {257, 70, 1000}, {37, 101, 103}, {250, 1100, 60},
      {33, 60, 800},  {515, 20, 400}, {300, 1030, 100}};
  constexpr double factors[] = {1.0, -0.75, 2.0315, 0.5, 1.0};
  for (const LinearExtent& e : extents) {
    const std::size_t index = cases.size();
    const std::string key = "matrix_product" + std::to_string(index);
    add({.rows = e.rows,
         .depth = e.inputs,
         .columns = e.outputs,
         .a_is_transposed = index / 2 % 2 == 1,
         .b_is_transposed = index / 4 % 2 == 1,
         .addend = static_cast<Addend>((index + index / 3) % 3),
         .factor = factors[index % 5],
         .addend_factor = factors[index / 3 % 5],
         .a = normal(key + "a", e.rows * e.inputs),
         .b = normal(key + "b", e.inputs * e.outputs, 0.0, 0.5),
         .added = normal(key + "added", e.rows * e.outputs)});
  }
  for (const std::int64_t size : {5, 48, 130, 131}) {
    for (const bool is_tall : {false, true}) {
      const std::int64_t length = 3 * size + 7;
      const std::string key = "matrix_product transpose" + std::to_string(size);
      add({.rows = size,
           .depth = length,
           .columns = size,
           .a_is_transposed = is_tall,
           .b_is_transposed = !is_tall,
           .b_is_a = true,
           .a = normal(key, size * length),
           .added = normal(key + "before", size * size)});
    }
    const std::string key = "matrix_product itself" + std::to_string(size);
    for (const bool is_transposed : {false, true})
      add({.rows = size,
           .depth = size,
           .columns = size,
           .b_is_transposed = is_transposed,
           .b_is_a = true,
           .addend_is_a = true,
           .addend = Addend::separate,
           .factor = 2.0315,
           .addend_factor = -4.775,
           .a = normal(key, size * size),
           .added = normal(key + "before", size * size)});
  }
  return cases;
}

std::vector<Case> linear_backward_weight_cases() {
  std::vector<Case> cases;
  for (const LinearExtent& e : linear_extents()) {
    LinearOperands operands = linear_operands(cases.size(), e, "linear_backward_weight");
    operands.rows = normal("linear_backward_weight before" + name_of(e), e.outputs * e.inputs);
    const auto run = [](Device& device, const LinearOperands& o) {
      const LinearExtent& x = o.extent;
      const View d_weight = device.put_master(o.rows, {x.outputs, x.inputs});
      const View d_bias = o.with_bias ? device.put_master(o.bias, {x.outputs}) : View();
      // Every second one's rows are as long as the matrix is wide.
      const View d_output =
          o.packed ? device.put(o.d_output, {x.rows, x.outputs}) : device.put_padded(o.d_output, x.rows, x.outputs);
      device.run(LinearBackwardWeight{.input = device.put(o.input, {x.rows, x.inputs}),
                                      .d_output = d_output,
                                      .d_weight = d_weight,
                                      .d_bias = d_bias});
      std::vector<Output> outputs{{"d_weight", Device::get(d_weight), Kind::master}};
      if (o.with_bias) outputs.push_back({"d_bias", Device::get(d_bias), Kind::master});
      return outputs;
    };
    cases.push_back(linear_case(name_of(e), static_cast<double>(e.rows), operands, run));
  }
  return cases;
}

namespace {

struct EmbeddingOperands {
  std::int64_t rows = 0, columns = 0, vocabulary = 0, num_positions = 0;
  Values table, position_table, d_output;
  Ids ids, positions;

  EmbeddingOperands squared() const {
    EmbeddingOperands result = *this;
    for (Values* values : {&result.table, &result.position_table, &result.d_output}) *values = map(*values, square);
    return result;
  }
};

EmbeddingOperands embedding_operands(std::size_t index, const Extent& e) {
  const std::string key = "embedding" + std::to_string(index);
  EmbeddingOperands o;
  o.rows = e.rows;
  o.columns = e.columns;
  o.vocabulary = 1 + static_cast<std::int64_t>(index * index % 300);
  o.num_positions = index % 2 == 1 ? 1 + static_cast<std::int64_t>(index % 40) : 0;
  o.table = normal(key + "table", o.vocabulary * e.columns);
  o.position_table = normal(key + "position_table", o.num_positions * e.columns);
  o.d_output = normal(key + "d_output", e.rows * e.columns, 0.1, 1.0);
  o.ids = random_ids(key + "ids", e.rows, o.vocabulary);
  o.positions = random_ids(key + "positions", e.rows, std::max<std::int64_t>(1, o.num_positions));
  return o;
}

std::string name_of(const EmbeddingOperands& o) {
  return std::to_string(o.rows) + "x" + std::to_string(o.columns) + " of " + std::to_string(o.vocabulary) +
         " ids and " + std::to_string(o.num_positions) + " positions";
}

double most_repeated(const Ids& ids) {
  std::map<std::int32_t, int> counts;
  int most = 0;
  for (const std::int32_t id : ids) most = std::max(most, ++counts[id]);
  return most;
}

}  // namespace

std::vector<Case> embedding_forward_cases() {
  std::vector<Case> cases;
  for (const Extent& e : row_extents()) {
    const auto run = [](Device& device, const EmbeddingOperands& o) {
      const View output = device.put(Values(static_cast<std::size_t>(o.rows * o.columns), 7.0), {o.rows, o.columns});
      EmbeddingForward op{.table = device.put(o.table, {o.vocabulary, o.columns}),
                          .position_table = {},
                          .ids = device.put_ids(o.ids, {o.rows}),
                          .positions = {},
                          .output = output};
      if (o.num_positions > 0) {
        op.position_table = device.put(o.position_table, {o.num_positions, o.columns});
        op.positions = device.put_ids(o.positions, {o.rows});
      }
      device.run(op);
      return std::vector<Output>{{"output", Device::get(output)}};
    };
    const EmbeddingOperands operands = embedding_operands(cases.size(), e);
    cases.push_back(linear_case(name_of(operands), 1.0, operands, run));
  }
  return cases;
}

std::vector<Case> embedding_backward_cases() {
  std::vector<Case> cases;
  for (const Extent& e : row_extents()) {
    const auto run = [](Device& device, const EmbeddingOperands& o) {
      const View d_table = device.put_master(o.table, {o.vocabulary, o.columns});
      EmbeddingBackward op{.d_output = device.put(o.d_output, {o.rows, o.columns}),
                           .ids = device.put_ids(o.ids, {o.rows}),
                           .positions = {},
                           .d_table = d_table,
                           .d_position_table = {}};
      if (o.num_positions > 0) {
        op.d_position_table = device.put_master(o.position_table, {o.num_positions, o.columns});
        op.positions = device.put_ids(o.positions, {o.rows});
      }
      device.run(op);
      std::vector<Output> outputs{{"d_table", Device::get(d_table), Kind::master}};
      if (o.num_positions > 0) outputs.push_back({"d_position_table", Device::get(op.d_position_table), Kind::master});
      return outputs;
    };
    const EmbeddingOperands operands = embedding_operands(cases.size(), e);
    const double most =
        std::max(most_repeated(operands.ids), operands.num_positions > 0 ? most_repeated(operands.positions) : 0);
    cases.push_back(linear_case(name_of(operands), most, operands, run));
  }
  return cases;
}

}  // namespace scaletrain::parity
