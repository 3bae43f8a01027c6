// The loss and elementwise operations.
#include <algorithm>
#include <cmath>
#include <memory>

#include "base/numbers/checked.h"
#include "cases.h"
#include "support/dropped.h"
#include "support/numbers.h"

namespace scaletrain::parity {

namespace {

std::string name_of(const Extent& e) {
  return std::to_string(e.rows) + "x" + std::to_string(e.columns);
}

}  // namespace

std::vector<std::int64_t> lengths() {
  return {1,   2,   3,   4,   5,   7,   8,   9,   11,  13,  15,  16,   17,   31,   32,   33,   61,   63,   64,    65,
          101, 127, 128, 129, 255, 256, 257, 509, 511, 512, 513, 1009, 1023, 1024, 1025, 4095, 4097, 5003, 16385, 0};
}

std::vector<Case> cross_entropy_cases() {
  struct Operands {
    Extent extent;
    Values logits;
    Ids targets;
    double d_scale = 0;
    LossShape shape;
  };
  std::vector<Case> cases;
  std::vector<std::pair<Extent, LossShape>> extents;
  for (const Extent& e : row_extents()) extents.emplace_back(e, LossShape());
  for (const Extent& e : row_extents()) extents.emplace_back(e, shape_of_case(extents.size()));
  for (const auto& [e, shape] : extents) {
    const std::string key = "cross_entropy" + std::to_string(cases.size());
    auto o = std::make_shared<Operands>();
    o->extent = e;
    o->logits = normal(key + "logits", e.rows * e.columns, 1.0, cases.size() % 3 == 0 ? 6.0 : 2.0);
    o->targets = random_ids(key + "targets", e.rows, e.columns);
    for (std::size_t n = 1; n < o->targets.size(); n += 3) o->targets[n] = -1;
    o->d_scale = cases.size() % 4 == 3 ? 0.0 : 0.75;
    o->shape = shape;
    Case c;
    c.name = name_of(e) + (o->d_scale != 0 ? " with gradient" : "") + (shape ? " shaped" : "");
    c.reduction_length = static_cast<double>(e.columns);
    c.run = [o](Device& device) {
      double loss_sum = 0.5;
      const std::int64_t columns = o->extent.columns;
      const View logits = device.put_padded(o->logits, o->extent.rows, columns);
      device.run(CrossEntropy{.logits = logits,
                              .targets = device.put_ids(o->targets, {o->extent.rows}),
                              .d_scale = o->d_scale,
                              .loss_sum = number_at(loss_sum),
                              .num_classes = columns,
                              .shape = o->shape});
      return std::vector<Output>{{"loss_sum", {loss_sum}, Kind::master}, {"logits", Device::get(logits, columns)}};
    };
    double loss_scale = 0.5;
    Values logits_scale;
    for (std::int64_t n = 0; n < e.rows; ++n) {
      const auto row = o->logits.begin() + n * e.columns;
      const std::int32_t target = o->targets[static_cast<std::size_t>(n)];
      double total = 0;
      for (std::int64_t v = 0; v < e.columns; ++v) total += std::exp(row[v]);
      if (target >= 0) loss_scale += std::max(1.0, std::fabs(row[target]));
      for (std::int64_t v = 0; v < e.columns; ++v) {
        const double size = (v == target ? 1.0 : std::exp(row[v]) / total) * weight_of(o->shape, std::log(total)) +
                            o->shape.label_smoothing / static_cast<double>(e.columns);
        logits_scale.push_back(target < 0 || o->d_scale == 0 ? untouched : o->d_scale * size);
      }
    }
    c.scales = {{loss_scale}, logits_scale};
    cases.push_back(c);
  }
  return cases;
}

std::vector<Case> add_cases() {
  std::vector<Case> cases;
  for (const std::int64_t n : lengths()) {
    const std::string key = "add" + std::to_string(cases.size());
    const Values a = normal(key + "a", n);
    const Values b = normal(key + "b", n);
    const std::size_t aliasing = cases.size() % 3;
    const bool of_gradients = cases.size() % 2 == 1;
    Case c;
    c.name = std::to_string(n) + " aliasing " + std::to_string(aliasing) + (of_gradients ? " in f32" : "");
    c.run = [=](Device& device) {
      const auto put = [&](const Values& values) {
        return of_gradients ? device.put_as(DType::f32, values, {n}) : device.put(values, {n});
      };
      const View left = put(a);
      const View right = put(b);
      View output = aliasing == 1 ? left : right;
      if (aliasing == 0) output = put(a);
      device.run(Add{.a = left, .b = right, .output = output});
      return std::vector<Output>{{"output", Device::get(output), of_gradients ? Kind::master : Kind::compute}};
    };
    Values scale;
    for (std::size_t i = 0; i < a.size(); ++i) scale.push_back(std::hypot(a[i], b[i]));
    c.scales = {scale};
    cases.push_back(c);
  }
  return cases;
}

std::vector<Case> dropout_cases() {
  std::vector<Case> cases;
  for (const Extent& extent : row_extents()) {
    const std::string key = "dropout" + std::to_string(cases.size());
    const std::int64_t count = extent.rows * extent.columns;
    const Values input = normal(key + "input", count);
    const Values addend = normal(key + "addend", count);
    const std::size_t kind =
        cases.size() % 4;  // without an addend in place or not; with one, in the input's or its place
    const std::int64_t first_column = cases.size() % 3 == 0 ? 0 : static_cast<std::int64_t>(cases.size() % 9);
    constexpr double probabilities[] = {0.1, 0.5, 0.9};
    const std::int64_t sample_rows = std::max<std::int64_t>(extent.rows / 2, 1);
    const std::int64_t first_row = static_cast<std::int64_t>(cases.size() % 2) * 3;
    DropoutMask mask;
    mask.probability = probabilities[cases.size() % 3];
    mask.key = philox_key(5, key);
    std::vector<std::int64_t> samples;
    for (std::int64_t i = 0; i * sample_rows < first_row + extent.rows; ++i) samples.push_back(i * 7 + (i << 34));
    Case c;
    c.name = std::to_string(extent.rows) + " x " + std::to_string(extent.columns) + " from column " +
             std::to_string(first_column) + " kind " + std::to_string(kind);
    c.run = [=](Device& device) {
      const Shape shape{extent.rows, extent.columns};
      const View from = device.put(input, shape);
      const View added = kind < 2 ? View() : device.put(addend, shape);
      const View to = kind == 1 ? device.put(Values(input.size(), 7.0), shape) : kind == 3 ? added : from;
      DropoutMask placed = mask;
      placed.samples = device.put_numbers(samples, {static_cast<std::int64_t>(samples.size())});
      device.run(Dropout{.input = from,
                         .addend = added,
                         .output = to,
                         .mask = placed,
                         .sample_rows = sample_rows,
                         .first_row = first_row,
                         .columns = first_column + extent.columns + 2,
                         .first_column = first_column});
      return std::vector<Output>{{"output", Device::get(to)}};
    };
    Values scale;
    for (std::int64_t n = 0; n < extent.rows; ++n)
      for (std::int64_t e = 0; e < extent.columns; ++e) {
        const auto at = static_cast<std::size_t>(n * extent.columns + e);
        const std::int64_t row = first_row + n;
        const double factor = dropped(mask.key, mask.probability, samples[static_cast<std::size_t>(row / sample_rows)],
                                      row % sample_rows, first_column + extent.columns + 2, first_column + e);
        scale.push_back(std::hypot(factor * input[at], kind < 2 ? 0.0 : addend[at]));
      }
    c.scales = {scale};
    cases.push_back(c);
  }
  return cases;
}

std::vector<Case> scale_cases() {
  std::vector<Case> cases;
  for (const Extent& e : row_extents()) {
    const std::string key = "scale" + std::to_string(cases.size());
    // A part of a wider matrix to a matrix of its own, the reverse, in place, or one matrix to another.
    const std::size_t kind = cases.size() % 5;
    const double factor = cases.size() % 4 == 3 ? 1.0 : (kind == 2 ? -0.375 : 0.375) * double(cases.size() + 1);
    const std::int64_t wide = e.columns + 8 + static_cast<std::int64_t>(cases.size() % 2) * 3;
    const Values narrow_values = normal(key, e.rows * e.columns);
    constexpr const char* names[] = {"out of a matrix", "into a matrix", "in place", "whole", "whole in place"};
    Case c;
    c.name = name_of(e) + " " + names[kind];
    c.run = [=](Device& device) {
      const View own = device.put(narrow_values, {e.rows, e.columns});
      const Strided part{device.put(normal(key + "wide", e.rows * wide), {e.rows, wide}), 8, e.columns};
      part.set(device.rounded(narrow_values));
      Scale op{.input = own, .output = own, .factor = factor};
      if (kind == 0) {
        op.input = part.view();
        op.input_stride = wide;
      } else if (kind == 1) {
        op.output = part.view();
        op.output_stride = wide;
      } else if (kind == 2) {
        op.input_stride = op.output_stride = e.columns;
      } else if (kind == 3) {
        op.output = device.put(Values(narrow_values.size(), 7.0), {e.rows, e.columns});
      }
      device.run(op);
      if (kind != 1) return std::vector<Output>{{"output", Device::get(op.output)}};
      const Values result = part.get();
      part.set(device.rounded(narrow_values));
      return std::vector<Output>{{"output", result}, {"gaps", Device::get(part.whole), Kind::around}};
    };
    Values sizes;
    for (const double value : narrow_values) sizes.push_back(std::fabs(factor * value));
    c.scales = {sizes};
    cases.push_back(c);
  }
  return cases;
}

namespace {

// Far below the cap, where it bends, and far above it.
Values inputs_of_cap(const std::string& key, std::int64_t length, double cap) {
  Values input = normal(key, length, 0.0, cap);
  const double special[] = {0.0, 1e-3 * cap, -0.29 * cap, 0.31 * cap, 5.0 * cap, -60.0 * cap, 1e-20, -1e-6 * cap};
  if (length > 200) std::copy(std::begin(special), std::end(special), input.begin());
  return rounded_to_float(input);
}
double cap_of_case(std::size_t index) {
  constexpr double caps[] = {30.0, 1.0, 50.0};
  return caps[index % 3];
}

}  // namespace

std::vector<Case> soft_cap_cases() {
  std::vector<Case> cases;
  for (const std::int64_t length : lengths()) {
    const double cap = cap_of_case(cases.size());
    const Values input = inputs_of_cap("soft_cap" + std::to_string(cases.size()), length, cap);
    const bool in_place = cases.size() % 2 == 1;
    Case c;
    c.name = std::to_string(length) + (in_place ? " in place" : "");
    c.run = [=](Device& device) {
      const View from = device.put(input, {length});
      const View to = in_place ? from : device.put(Values(input.size(), 7.0), {length});
      device.run(SoftCap{.input = from, .output = to, .cap = cap});
      return std::vector<Output>{{"output", Device::get(to)}};
    };
    Values scale;
    for (const double value : input) scale.push_back(std::min(std::fabs(value), cap));
    c.scales = {scale};
    cases.push_back(c);
  }
  return cases;
}

std::vector<Case> soft_cap_backward_cases() {
  std::vector<Case> cases;
  for (const std::int64_t length : lengths()) {
    const std::string key = "soft_cap_backward" + std::to_string(cases.size());
    const double cap = cap_of_case(cases.size());
    const Values input = inputs_of_cap(key, length, cap);
    const Values d_output = normal(key + "d_output", length);
    const std::size_t place = cases.size() % 3;  // of d_input: apart, the input's, d_output's
    Case c;
    c.name = std::to_string(length) + (place == 0 ? "" : place == 1 ? " in the input" : " in d_output");
    c.run = [=](Device& device) {
      const View from = device.put(input, {length});
      const View d_to = device.put(d_output, {length});
      const View d_from = place == 0 ? device.put(Values(input.size(), 7.0), {length}) : place == 1 ? from : d_to;
      device.run(SoftCapBackward{.input = from, .d_output = d_to, .d_input = d_from, .cap = cap});
      return std::vector<Output>{{"d_input", Device::get(d_from)}};
    };
    Values scale;
    for (const double value : d_output) scale.push_back(std::fabs(value));
    c.scales = {scale};
    cases.push_back(c);
  }
  return cases;
}

std::vector<Case> copy_cases() {
  std::vector<Case> cases;
  const DType types[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
  for (const std::int64_t n : lengths()) {
    const DType from = types[cases.size() % 4];
    const DType to = types[cases.size() / 4 % 4];
    const Values values = normal("copy" + std::to_string(cases.size()), n, 0.0, 100.0);
    Case c;
    c.name = std::to_string(n) + " " + std::string(to_text(from)) + " to " + std::string(to_text(to));
    c.run = [=](Device& device) {
      const View input = device.put_as(from, values, {n, 1});
      const View output = device.put_as(to, Values(values.size(), 7.0), {1, n});
      device.run(Copy{.input = input, .output = output});
      return std::vector<Output>{{"output", Device::get(output), Kind::master}};
    };
    c.scales = {Values(values.size(), untouched)};  // every rounding is defined: no tolerance
    cases.push_back(c);
  }
  return cases;
}

std::vector<Case> fill_cases() {
  std::vector<Case> cases;
  for (const std::int64_t n : lengths()) {
    const double value = cases.size() % 2 == 0 ? 0.0 : -1.375 * static_cast<double>(cases.size());
    Case c;
    c.name = std::to_string(n) + " with " + std::to_string(value);
    c.run = [=](Device& device) {
      const View output = device.put(normal("fill", n), {n});
      device.run(Fill{.output = output, .value = value});
      return std::vector<Output>{{"output", Device::get(output)}};
    };
    c.scales = {Values(static_cast<std::size_t>(n), untouched)};
    cases.push_back(c);
  }
  return cases;
}

namespace {

// All of n elements, or several spans with padding before, between and after them of which two touch and one is empty,
// or very many.
std::vector<ElementSpan> spans_of(std::size_t index, std::int64_t n) {
  if (index % 4 == 2) return {{0, n}};
  std::vector<ElementSpan> spans;
  if (index % 4 == 1 && n > 1000) {
    for (std::int64_t first = 3; first < n; first += 7) spans.push_back({first, std::min(first % 8, n - first)});
    return spans;
  }
  const std::int64_t a = n / 7;
  const std::int64_t b = n / 2;
  const std::int64_t d = n - n / 5;
  return {{a, b - a}, {b, (d - b) / 2}, {d - (d - b) / 3, 0}, {d - (d - b) / 3, (d - b) / 3}};
}

}  // namespace

std::vector<Case> sums_of_squares_cases() {
  std::vector<Case> cases;
  std::vector<std::int64_t> all_lengths = lengths();
  all_lengths.push_back(50021);
  for (const std::int64_t n : all_lengths) {
    const Values values = normal("sums_of_squares" + std::to_string(n), n, 0.5, 1.0);
    const bool of_masters = cases.size() % 3 != 1;
    const auto spans = std::make_shared<const std::vector<ElementSpan>>(spans_of(cases.size(), n));
    Case c;
    c.name = std::to_string(n) + (of_masters ? " masters" : " of the compute type") + " in " +
             std::to_string(spans->size()) + " spans";
    c.unit = 1e-14;  // squares of f32 are exact in double, and their sums are kept in double
    c.reduction_length = static_cast<double>(std::max<std::int64_t>(1, n));
    c.run = [=](Device& device) {
      Values results(spans->size(), -1.0);  // overwritten, not added to
      const View operand = of_masters ? device.put_as(DType::f32, values, {n}) : device.put(values, {n});
      device.run(SumsOfSquares{.values = operand,
                               .spans = *spans,
                               .results = View(results.data(), DType::f64, {narrow<std::int64_t>(results.size())})});
      return std::vector<Output>{{"results", results, Kind::master}};
    };
    c.scales = {Values(spans->size(), 0.0)};
    cases.push_back(c);
  }
  return cases;
}

}  // namespace scaletrain::parity
