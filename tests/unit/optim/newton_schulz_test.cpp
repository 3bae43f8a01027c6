#include "optim/newton_schulz.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "support/forwarding_backend.h"

using namespace scaletrain;

namespace {

// What five iterations make of a singular value.
double mapped(double value) {
  constexpr double a = 3.4445;
  constexpr double b = -4.7750;
  constexpr double c = 2.0315;
  for (int step = 0; step < 5; ++step) value = a * value + b * std::pow(value, 3) + c * std::pow(value, 5);
  return value;
}

// Element (i, j) of the reflection of n dimensions at the plane across (1, 2, ..., n).
double reflection(std::int64_t n, std::int64_t i, std::int64_t j) {
  double square = 0;
  for (std::int64_t k = 1; k <= n; ++k) square += static_cast<double>(k * k);
  return (i == j ? 1.0 : 0.0) - 2.0 * static_cast<double>((i + 1) * (j + 1)) / square;
}

// A matrix of these singular values, between two reflections.
std::vector<double> with_singular_values(std::int64_t rows, std::int64_t columns, const std::vector<double>& values) {
  std::vector<double> out(static_cast<std::size_t>(rows * columns));
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j)
      for (std::size_t k = 0; k < values.size(); ++k)
        out[static_cast<std::size_t>(i * columns + j)] += reflection(rows, i, static_cast<std::int64_t>(k)) *
                                                          values[k] *
                                                          reflection(columns, static_cast<std::int64_t>(k), j);
  return out;
}

std::vector<double> singular_values(std::int64_t count) {
  std::vector<double> values;
  double square = 0;
  for (std::int64_t k = 0; k < count; ++k) {
    values.push_back(std::pow(0.5, static_cast<double>(k)));
    square += values.back() * values.back();
  }
  for (double& value : values) value /= std::sqrt(square);
  return values;
}

double largest_error(Backend& backend, const Shape& shape) {
  const std::int64_t rows = shape[0];
  const std::int64_t columns = shape[1];
  const auto stream = backend.make_stream();
  NewtonSchulzExtent extent;
  extent.include(rows, columns);
  const NewtonSchulz iterations(backend, extent);
  std::vector<double> values = singular_values(std::min(rows, columns));
  const std::vector<double> given = with_singular_values(rows, columns, values);
  for (double& value : values) value = mapped(value);
  const std::vector<double> expected = with_singular_values(rows, columns, values);
  const View x = iterations.first(rows, columns);
  const std::size_t bytes = given.size() * sizeof(double);
  Buffer wide = backend.allocate(bytes);
  const View numbers = wide.view(0, DType::f64, x.shape());
  std::copy(given.begin(), given.end(), numbers.as<double>());
  convert_floats(DType::f64, numbers.data(), x.dtype(), x.data(), given.size());
  const View result = iterations.orthogonalise(*stream, rows, columns);
  convert_floats(result.dtype(), result.data(), DType::f64, numbers.data(), given.size());
  double error = 0;
  for (std::size_t i = 0; i < expected.size(); ++i)
    error = std::max(error, std::abs(numbers.as<double>()[i] - expected[i]));
  return error;
}

// Adds up what it allocates.
class AllocationBackend final : public ForwardingBackend {
 public:
  explicit AllocationBackend(std::unique_ptr<Backend> inner) : ForwardingBackend(std::move(inner)) {}
  Buffer allocate(std::size_t bytes) override {
    allocated += bytes;
    return inner().allocate(bytes);
  }
  std::size_t allocated = 0;
};

}  // namespace

TEST_CASE("singular values are mapped by the polynomial, and the singular vectors stay") {
  const auto reference = make_reference_backend(DType::f64);
  const auto floats = make_cpu_backend({.threads = 2, .compute = DType::f32});
  const auto halves = make_cpu_backend({.threads = 2, .compute = DType::bf16});
  for (const Shape& shape : {Shape{5, 5}, Shape{3, 7}, Shape{7, 3}, Shape{1, 4}, Shape{4, 1}, Shape{12, 19}}) {
    CAPTURE(to_text(shape));
    CHECK(largest_error(*reference, shape) <= 1e-12);
    CHECK(largest_error(*floats, shape) <= 1e-3);  // the least of them are made 485 times as large
    CHECK(largest_error(*halves, shape) <= 0.25);
  }
}

TEST_CASE("the plan knows the memory of the iterations to the byte") {
  NewtonSchulzExtent extent;
  extent.include(3, 40);
  extent.include(9, 5);
  for (const DType type : {DType::f32, DType::bf16}) {
    AllocationBackend backend(make_cpu_backend({.threads = 1, .compute = type}));
    const NewtonSchulz iterations(backend, extent);
    CHECK(backend.allocated == NewtonSchulz::bytes(extent, type));
    CHECK(backend.allocated >= 2 * 120 * size_of(type) + 2 * 25 * size_of(type));
  }
}
