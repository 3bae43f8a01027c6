// What an optimizer of factored second moments does with parts of matrices, and with vectors.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>

#include "base/numbers/checked.h"
#include "cases.h"
#include "support/numbers.h"

namespace scaletrain::parity {

namespace {

// A part of a matrix, which begins in the middle of a row and ends in one, or does not.
struct MatrixPart {
  std::int64_t count = 0, first_column = 0, columns = 0, rows = 0;
  Values values, of_rows, of_columns;
  StepScalars step;

  std::size_t row_of(std::int64_t e) const { return static_cast<std::size_t>((first_column + e) / columns); }
  std::size_t column_of(std::int64_t e) const { return static_cast<std::size_t>((first_column + e) % columns); }
  std::string name() const {
    return std::to_string(count) + " in rows of " + std::to_string(columns) + " from column " +
           std::to_string(first_column) + (step.skip != 0 ? " skipped" : "");
  }
};

std::shared_ptr<const MatrixPart> matrix_part(std::size_t index, std::int64_t count, std::int64_t columns) {
  auto part = std::make_shared<MatrixPart>();
  const std::string key = "part" + std::to_string(index);
  part->count = count;
  part->columns = columns;
  part->first_column = index % 3 == 0 ? 0 : static_cast<std::int64_t>(index) % columns;
  part->rows = count == 0 ? 0 : ceil_div(part->first_column + count, columns);
  part->values = normal(key, count, 0.5, 3.0);
  const auto positive = [](double x) { return std::fabs(x) + 0.1; };
  part->of_rows = rounded_to_float(map(normal(key + "rows", part->rows), positive));
  part->of_columns = rounded_to_float(map(normal(key + "columns", columns), positive));
  part->step = {.gradient_scale = 0.05, .skip = index % 11 == 3 ? 1.0 : 0.0};
  return part;
}

// Of all lengths, in rows of one element, of some, and of more than there are.
std::vector<std::shared_ptr<const MatrixPart>> matrix_parts() {
  std::vector<std::shared_ptr<const MatrixPart>> all;
  for (const std::int64_t count : lengths()) {
    const std::int64_t columns[] = {1, 7, 64, 129, count + 3};
    all.push_back(matrix_part(all.size(), count, columns[all.size() % std::size(columns)]));
  }
  // Beyond what a thread of any backend sums at once.
  all.push_back(matrix_part(all.size(), 50021, 257));
  all.push_back(matrix_part(all.size(), 40000, 40));
  return all;
}

}  // namespace

std::vector<Case> matrix_squares_cases() {
  std::vector<Case> cases;
  for (const auto& part : matrix_parts()) {
    Case c;
    c.name = part->name();
    c.unit = 1e-14;  // squares of f32 are exact in double, and their sums are kept in double
    c.reduction_length = static_cast<double>(std::max<std::int64_t>(1, part->count));
    c.run = [part](Device& device) {
      Values rows(static_cast<std::size_t>(part->rows), -1.0);  // overwritten, not added to
      Values columns(static_cast<std::size_t>(part->columns), -1.0);
      device.run(MatrixSquares{.values = device.put_master(part->values, {part->count}),
                               .first_column = part->first_column,
                               .rows = View(rows.data(), DType::f64, {part->rows}),
                               .columns = View(columns.data(), DType::f64, {part->columns})});
      std::vector<Output> outputs;
      if (!rows.empty()) outputs.push_back({"rows", rows, Kind::master});
      outputs.push_back({"columns", columns, Kind::master});
      return outputs;
    };
    if (part->rows > 0) c.scales.emplace_back(static_cast<std::size_t>(part->rows), 0.0);
    c.scales.emplace_back(static_cast<std::size_t>(part->columns), 0.0);
    cases.push_back(c);
  }
  return cases;
}

std::vector<Case> factored_direction_cases() {
  std::vector<Case> cases;
  constexpr double largest = 1.5;  // some products are above it
  for (const auto& part : matrix_parts()) {
    Case c;
    c.name = part->name();
    c.run = [part](Device& device) {
      const View gradient = device.put_master(part->values, {part->count});
      device.run(FactoredDirection{.gradient = gradient,
                                   .first_column = part->first_column,
                                   .rows = device.put_master(part->of_rows, {part->rows}),
                                   .columns = device.put_master(part->of_columns, {part->columns}),
                                   .largest = largest,
                                   .step = record_of(part->step)});
      return std::vector<Output>{{"gradient", Device::get(gradient), Kind::master}};
    };
    Values scale(static_cast<std::size_t>(part->count), untouched);
    for (std::int64_t e = 0; e < part->count && part->step.skip == 0; ++e)
      scale[static_cast<std::size_t>(e)] =
          std::fabs(part->values[static_cast<std::size_t>(e)] * part->step.gradient_scale) *
          std::min(part->of_rows[part->row_of(e)] * part->of_columns[part->column_of(e)], largest);
    c.scales = {scale};
    cases.push_back(c);
  }
  return cases;
}

}  // namespace scaletrain::parity
