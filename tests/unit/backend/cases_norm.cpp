// Norms and activations.
#include <algorithm>
#include <cmath>
#include <memory>

#include "cases.h"

namespace scaletrain::parity {

std::vector<Extent> row_extents() {
  return {{1, 1},    {1, 2},    {2, 1},    {3, 3},   {1, 7},   {7, 5},   {0, 8},    {5, 8},   {4, 15},
          {4, 16},   {4, 17},   {31, 31},  {32, 32}, {33, 33}, {1, 63},  {2, 64},   {3, 65},  {127, 13},
          {128, 12}, {129, 11}, {2, 127},  {3, 128}, {2, 129}, {5, 255}, {5, 256},  {5, 257}, {1, 1009},
          {2, 1023}, {1, 1024}, {2, 1025}, {257, 3}, {511, 2}, {61, 96}, {100, 64}, {3, 2047}};
}

namespace {

std::string extent_text(const Extent& e) {
  return std::to_string(e.rows) + "x" + std::to_string(e.columns);
}

// Rows that several warps of a GPU share as well: as wide as in models, some of which divide unevenly, and wider.
std::vector<Extent> norm_extents() {
  std::vector<Extent> extents = row_extents();
  for (const Extent& e : {Extent{5, 768}, {9, 1280}, {3, 1600}, {5, 1600}, {3, 4096}, {2, 4096}, {2, 8200}, {3, 8200}})
    extents.push_back(e);
  return extents;
}

// Rows, and of how many heads each group of them is; 0: rows that are no heads.
struct NormExtent : Extent {
  std::int64_t heads = 0;
};

std::vector<NormExtent> with_heads(const std::vector<Extent>& plain) {
  std::vector<NormExtent> extents;
  extents.reserve(plain.size());
  for (const Extent& e : plain) extents.push_back({e, 0});
  // Sizes of heads, beside those that packs and lanes do not divide.
  for (const NormExtent& e : {NormExtent{{1, 1}, 1},
                              {{6, 2}, 3},
                              {{0, 8}, 4},
                              {{15, 7}, 5},
                              {{33, 16}, 3},
                              {{64, 64}, 8},
                              {{63, 64}, 7},
                              {{36, 80}, 12},
                              {{64, 128}, 16},
                              {{320, 128}, 1},
                              {{26, 129}, 13},
                              {{18, 256}, 2},
                              {{4, 1024}, 2}})
    extents.push_back(e);
  return extents;
}

struct NormOperands {
  NormType type = NormType::layernorm;
  std::int64_t rows = 0, columns = 0;
  std::int64_t heads = 0;
  double epsilon = 1e-5;
  double weight_offset = 0.0;
  bool with_bias = false;
  int aliasing = 0;  // of d_input: 0 no addend, 1 addend apart, 2 it is the addend, 3 it is d_output
  Values input, weight, bias, d_output, addend, mean, rstd;

  double centre(std::int64_t row) const {
    return type == NormType::layernorm ? mean[static_cast<std::size_t>(row)] : 0.0;
  }
  double normalised(std::int64_t row, std::int64_t column) const {
    return (input[static_cast<std::size_t>(row * columns + column)] - centre(row)) *
           rstd[static_cast<std::size_t>(row)];
  }
};

// An operand's rows: a matrix of its own or, where they are heads, a part of a wider one, each operand of another.
struct PlacedRows {
  Strided place;
  View view;
  RowLayout layout;

  PlacedRows(Device& device, const NormOperands& o, const Values& values, std::int64_t gap, std::int64_t offset) {
    if (o.heads == 0) {
      place = {device.put(values, {o.rows, o.columns}), 0, o.columns};
      view = place.whole;
      return;
    }
    const std::int64_t groups = o.rows / o.heads;
    const std::int64_t width = o.heads * o.columns;
    Values all(static_cast<std::size_t>(groups * (width + gap)), 0.5);
    for (std::int64_t group = 0; group < groups; ++group)
      std::copy_n(values.begin() + group * width, width, all.begin() + group * (width + gap) + offset);
    place = {device.put(all, {groups, width + gap}), offset, width};
    const View wide = place.view();
    view = View(wide.data(), wide.dtype(), {o.rows, o.columns}, wide.space());
    layout = {o.heads, place.stride()};
  }
  // And, where they are heads, what lies around them.
  std::vector<Output> outputs(const std::string& name) const {
    std::vector<Output> all{{name, place.get()}};
    if (layout.heads == 0) return all;
    place.set(Values(all.front().values.size()));
    all.push_back({"gaps", Device::get(place.whole), Kind::around});
    return all;
  }
};

NormOperands norm_operands(std::size_t index, const NormExtent& e) {
  const std::string key = "norm" + std::to_string(index);
  NormOperands o;
  o.type = index % 2 == 0 ? NormType::layernorm : NormType::rmsnorm;
  o.rows = e.rows;
  o.columns = e.columns;
  o.heads = e.heads;
  o.epsilon = index % 3 == 0 ? 1e-6 : 1e-5;
  o.with_bias = o.type == NormType::layernorm && index % 4 == 0;
  o.aliasing = static_cast<int>(index / 2 % 4);
  if (e.heads > 0) o.aliasing = o.aliasing < 2 ? 0 : 3;  // there is no addend
  o.input = normal(key + "input", e.rows * e.columns, index % 5 == 0 ? 3.0 : 0.25, 1.0);
  // Every other pair of cases keeps weights as their distance from one.
  o.weight_offset = index / 2 % 2 == 0 ? 0.0 : 1.0;
  o.weight = normal(key + "weight", e.columns, 1.0 - o.weight_offset, 0.3);
  o.bias = normal(key + "bias", e.columns);
  o.d_output = normal(key + "d_output", e.rows * e.columns, 0.1, 1.0);
  o.addend = normal(key + "addend", e.rows * e.columns);
  for (std::int64_t n = 0; n < e.rows; ++n) {
    double mean = 0;
    double squares = 0;
    const auto at = [&](std::int64_t c) { return o.input[static_cast<std::size_t>(n * e.columns + c)]; };
    for (std::int64_t c = 0; c < e.columns; ++c) mean += at(c) / static_cast<double>(e.columns);
    if (o.type == NormType::rmsnorm) mean = 0;
    for (std::int64_t c = 0; c < e.columns; ++c) squares += square(at(c) - mean) / static_cast<double>(e.columns);
    o.mean.push_back(mean);
    o.rstd.push_back(1.0 / std::sqrt(squares + o.epsilon));
  }
  o.mean = rounded_to_float(o.mean);
  o.rstd = rounded_to_float(o.rstd);
  return o;
}

std::string name_of(const NormOperands& o) {
  return std::string(o.type == NormType::layernorm ? "layernorm " : "rmsnorm ") + std::to_string(o.rows) + "x" +
         std::to_string(o.columns) + (o.heads > 0 ? " of " + std::to_string(o.heads) + " heads" : "") +
         (o.weight_offset != 0.0 ? " weights around zero" : "") + (o.with_bias ? " bias" : "") + " aliasing " +
         std::to_string(o.aliasing);
}

Case norm_case(const std::shared_ptr<const NormOperands>& o, std::int64_t reduction_length) {
  Case c;
  c.name = name_of(*o);
  c.reduction_length = static_cast<double>(std::max<std::int64_t>(1, reduction_length));
  return c;
}

// How much larger the inputs of a row are than their spread: what the subtraction of the mean loses.
double cancellation(const NormOperands& o, std::int64_t row) {
  double squares = 0;
  for (std::int64_t c = 0; c < o.columns; ++c)
    squares += square(o.input[static_cast<std::size_t>(row * o.columns + c)]);
  return std::max(1.0, std::sqrt(squares / static_cast<double>(o.columns)) * o.rstd[static_cast<std::size_t>(row)]);
}

}  // namespace

std::vector<Case> norm_forward_cases() {
  std::vector<Case> cases;
  for (const NormExtent& e : with_heads(norm_extents())) {
    const auto o = std::make_shared<const NormOperands>(norm_operands(cases.size(), e));
    Case c = norm_case(o, e.columns);
    c.run = [o](Device& device) {
      const bool layernorm = o->type == NormType::layernorm;
      const PlacedRows input(device, *o, o->input, 9, 1);
      const PlacedRows output(device, *o, o->addend, 8, 8);
      const View mean = layernorm ? device.put_master(o->rstd, {o->rows}) : View();
      const View rstd = device.put_master(o->mean, {o->rows});
      device.run(NormForward{.type = o->type,
                             .epsilon = o->epsilon,
                             .input = input.view,
                             .weight = device.put(o->weight, {o->columns}),
                             .bias = o->with_bias ? device.put(o->bias, {o->columns}) : View(),
                             .output = output.view,
                             .mean = mean,
                             .rstd = rstd,
                             .input_rows = input.layout,
                             .output_rows = output.layout,
                             .weight_offset = o->weight_offset});
      std::vector<Output> outputs = output.outputs("output");
      const auto behind = outputs.begin() + 1;
      const auto at = outputs.insert(behind, {"rstd", Device::get(rstd), Kind::master});
      if (layernorm) outputs.insert(at, {"mean", Device::get(mean), Kind::master});
      return outputs;
    };
    Values output_scale;
    Values mean_scale;
    Values rstd_scale;
    for (std::int64_t n = 0; n < e.rows; ++n) {
      const double lost = cancellation(*o, n);
      mean_scale.push_back(lost / o->rstd[static_cast<std::size_t>(n)]);
      rstd_scale.push_back(lost * o->rstd[static_cast<std::size_t>(n)]);
      for (std::size_t column = 0; column < o->weight.size(); ++column)
        output_scale.push_back(lost * std::fabs(o->weight[column] + o->weight_offset) +
                               (o->with_bias ? std::fabs(o->bias[column]) : 0.0));
    }
    c.scales = {output_scale};
    if (o->type == NormType::layernorm) c.scales.push_back(mean_scale);
    c.scales.push_back(rstd_scale);
    cases.push_back(c);
  }
  return cases;
}

std::vector<Case> norm_backward_input_cases() {
  std::vector<Case> cases;
  for (const NormExtent& e : with_heads(norm_extents())) {
    const auto o = std::make_shared<const NormOperands>(norm_operands(cases.size(), e));
    Case c = norm_case(o, e.columns);
    c.run = [o](Device& device) {
      const Shape shape{o->rows, o->columns};
      const PlacedRows input(device, *o, o->input, 8, 0);
      const PlacedRows d_output(device, *o, o->d_output, 16, 8);
      const View addend = o->aliasing == 1 || o->aliasing == 2 ? device.put(o->addend, shape) : View();
      PlacedRows d_input = d_output;
      if (o->aliasing < 2) d_input = PlacedRows(device, *o, o->addend, 24, 16);
      if (o->aliasing == 2) d_input.place.whole = d_input.view = addend;
      device.run(
          NormBackwardInput{.type = o->type,
                            .d_output = d_output.view,
                            .input = input.view,
                            .weight = device.put(o->weight, {o->columns}),
                            .mean = o->type == NormType::layernorm ? device.put_master(o->mean, {o->rows}) : View(),
                            .rstd = device.put_master(o->rstd, {o->rows}),
                            .addend = addend,
                            .d_input = d_input.view,
                            .d_output_rows = d_output.layout,
                            .input_rows = input.layout,
                            .d_input_rows = d_input.layout,
                            .weight_offset = o->weight_offset});
      return d_input.outputs("d_input");
    };
    Values scale;
    for (std::int64_t n = 0; n < e.rows; ++n) {
      const auto g = [&](std::int64_t column) {
        return o->d_output[static_cast<std::size_t>(n * e.columns + column)] *
               (o->weight[static_cast<std::size_t>(column)] + o->weight_offset);
      };
      double squares = 0;
      double normalised_squares = 0;
      for (std::int64_t column = 0; column < e.columns; ++column) {
        squares += square(g(column));
        normalised_squares += square(o->normalised(n, column));
      }
      const double g_size = std::sqrt(squares / static_cast<double>(e.columns));
      const double x_size = std::sqrt(normalised_squares / static_cast<double>(e.columns));
      for (std::int64_t column = 0; column < e.columns; ++column) {
        const double projected = std::fabs(o->normalised(n, column)) * x_size * g_size;
        double size = o->rstd[static_cast<std::size_t>(n)] * std::max({std::fabs(g(column)), g_size, projected});
        if (o->aliasing == 1 || o->aliasing == 2)
          size += std::fabs(o->addend[static_cast<std::size_t>(n * e.columns + column)]);
        scale.push_back(size);
      }
    }
    c.scales = {scale};
    cases.push_back(c);
  }
  return cases;
}

std::vector<Case> norm_backward_weight_cases() {
  std::vector<Case> cases;
  // More rows than kernels of GPUs cut wide matrices into parts, and rows of several blocks, the last one half empty.
  std::vector<Extent> extents = row_extents();
  for (const Extent& e : {Extent{4200, 8}, Extent{4201, 8}, Extent{40, 1600}, Extent{41, 1600}}) extents.push_back(e);
  for (const NormExtent& e : with_heads(extents)) {
    const auto o = std::make_shared<const NormOperands>(norm_operands(cases.size(), e));
    Case c = norm_case(o, e.rows);
    c.run = [o](Device& device) {
      const PlacedRows input(device, *o, o->input, 3, 2);
      const PlacedRows d_output(device, *o, o->d_output, 8, 0);
      const View d_weight = device.put_master(o->weight, {o->columns});
      const View d_bias = o->with_bias ? device.put_master(o->bias, {o->columns}) : View();
      device.run(
          NormBackwardWeight{.type = o->type,
                             .d_output = d_output.view,
                             .input = input.view,
                             .mean = o->type == NormType::layernorm ? device.put_master(o->mean, {o->rows}) : View(),
                             .rstd = device.put_master(o->rstd, {o->rows}),
                             .d_weight = d_weight,
                             .d_bias = d_bias,
                             .d_output_rows = d_output.layout,
                             .input_rows = input.layout});
      std::vector<Output> outputs{{"d_weight", Device::get(d_weight), Kind::master}};
      if (o->with_bias) outputs.push_back({"d_bias", Device::get(d_bias), Kind::master});
      return outputs;
    };
    Values weight_scale;
    Values bias_scale;
    for (std::int64_t column = 0; column < e.columns; ++column) {
      double weight_squares = square(o->weight[static_cast<std::size_t>(column)]);
      double bias_squares = square(o->bias[static_cast<std::size_t>(column)]);
      for (std::int64_t n = 0; n < e.rows; ++n) {
        const double gradient = o->d_output[static_cast<std::size_t>(n * e.columns + column)];
        weight_squares += square(gradient * o->normalised(n, column));
        bias_squares += square(gradient);
      }
      weight_scale.push_back(std::sqrt(weight_squares));
      bias_scale.push_back(std::sqrt(bias_squares));
    }
    c.scales = {weight_scale};
    if (o->with_bias) c.scales.push_back(bias_scale);
    cases.push_back(c);
  }
  return cases;
}

namespace {

struct ActivationOperands {
  ActivationType type = ActivationType::gelu;
  Extent extent;
  Values input, d_output;

  Shape input_shape() const { return {extent.rows, is_gated(type) ? 2 * extent.columns : extent.columns}; }
  Shape shape() const { return {extent.rows, extent.columns}; }
};

// Every extent with each of the functions. Inputs reach into the saturated ranges, where exp overflows in f32.
std::vector<std::shared_ptr<const ActivationOperands>> activation_operands() {
  std::vector<std::shared_ptr<const ActivationOperands>> all;
  for (const ActivationType type :
       {ActivationType::gelu, ActivationType::gelu_tanh, ActivationType::swiglu, ActivationType::geglu})
    for (const Extent& e : row_extents()) {
      ActivationOperands o;
      o.type = type;
      o.extent = e;
      const std::string key = "activation" + std::to_string(all.size());
      o.input = normal(key + "input", o.input_shape().num_elements(), 0.0, all.size() % 3 == 0 ? 4.0 : 1.0);
      o.d_output = normal(key + "d_output", e.rows * e.columns);
      const double special[] = {0.0, -0.5, 5.5, -5.5, 12.0, -12.0, 90.0, -90.0, 1e-30, 1000.0, -1000.0};
      if (o.input.size() > 500) std::copy(std::begin(special), std::end(special), o.input.begin());
      o.input = rounded_to_float(o.input);
      all.push_back(std::make_shared<const ActivationOperands>(o));
    }
  return all;
}

Case activation_case(const ActivationOperands& o) {
  const char* names[] = {"gelu ", "gelu_tanh ", "swiglu ", "geglu "};
  Case c;
  c.name = names[static_cast<int>(o.type)] + extent_text(o.extent);
  return c;
}

}  // namespace

std::vector<Case> activation_forward_cases() {
  std::vector<Case> cases;
  for (const auto& o : activation_operands()) {
    Case c = activation_case(*o);
    c.run = [o](Device& device) {
      const View output = device.put(o->d_output, o->shape());
      device.run(ActivationForward{.type = o->type, .input = device.put(o->input, o->input_shape()), .output = output});
      return std::vector<Output>{{"output", Device::get(output)}};
    };
    Values scale;
    for (std::size_t e = 0; e < o->d_output.size(); ++e) {
      if (!is_gated(o->type)) {
        scale.push_back(std::fabs(o->input[e]));
        continue;
      }
      const auto features = static_cast<std::size_t>(o->extent.columns);
      const std::size_t gate = e / features * 2 * features + e % features;
      scale.push_back(std::fabs(o->input[gate] * o->input[gate + features]));
    }
    c.scales = {scale};
    cases.push_back(c);
  }
  return cases;
}

std::vector<Case> activation_backward_cases() {
  std::vector<Case> cases;
  for (const auto& o : activation_operands()) {
    Case c = activation_case(*o);
    c.run = [o](Device& device) {
      const View d_input = device.put(o->input, o->input_shape());
      device.run(ActivationBackward{.type = o->type,
                                    .input = device.put(o->input, o->input_shape()),
                                    .d_output = device.put(o->d_output, o->shape()),
                                    .d_input = d_input});
      return std::vector<Output>{{"d_input", Device::get(d_input)}};
    };
    Values scale(o->input.size());
    for (std::size_t e = 0; e < o->d_output.size(); ++e) {
      if (!is_gated(o->type)) {
        scale[e] = std::fabs(o->d_output[e]) * std::max(1.0, std::min(6.0, std::fabs(o->input[e])));
        continue;
      }
      const auto features = static_cast<std::size_t>(o->extent.columns);
      const std::size_t gate = e / features * 2 * features + e % features;
      scale[gate] = std::fabs(o->d_output[e] * o->input[gate + features]);
      scale[gate + features] = std::fabs(o->d_output[e] * o->input[gate]);
    }
    c.scales = {scale};
    cases.push_back(c);
  }
  return cases;
}

}  // namespace scaletrain::parity
