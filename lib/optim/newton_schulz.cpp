#include "optim/newton_schulz.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/numbers/checked.h"

namespace scaletrain {

namespace {

constexpr std::size_t num_matrices = 2;
constexpr std::size_t num_products = 2;

std::size_t place_bytes(std::int64_t elements, DType type) {
  return align_up(static_cast<std::size_t>(elements) * size_of(type));
}

}  // namespace

void NewtonSchulzExtent::include(std::int64_t rows, std::int64_t columns) {
  const std::int64_t size = std::min(rows, columns);
  elements = std::max(elements, checked_mul(rows, columns));
  products = std::max(products, checked_mul(size, size));
}

NewtonSchulz::NewtonSchulz(Backend& backend, const NewtonSchulzExtent& extent)
    : backend_(backend), extent_(extent), memory_(backend.allocate(bytes(extent, backend.compute_type()))) {}

std::size_t NewtonSchulz::bytes(const NewtonSchulzExtent& extent, DType compute) {
  return num_matrices * place_bytes(extent.elements, compute) + num_products * place_bytes(extent.products, compute);
}

// X·Xᵀ and what is multiplied by X, with the long side; A² without.
double NewtonSchulz::flops(std::int64_t rows, std::int64_t columns) {
  const auto size = static_cast<double>(std::min(rows, columns));
  const auto length = static_cast<double>(std::max(rows, columns));
  return newton_schulz_steps * (4 * size * size * length + 2 * size * size * size);
}

View NewtonSchulz::matrix(std::size_t which, std::int64_t rows, std::int64_t columns) const {
  const DType type = backend_.compute_type();
  SCALETRAIN_CHECK_LE(rows * columns, extent_.elements);
  return memory_.view(which * place_bytes(extent_.elements, type), type, {rows, columns});
}

View NewtonSchulz::product(std::size_t which, std::int64_t size) const {
  const DType type = backend_.compute_type();
  SCALETRAIN_CHECK_LE(size * size, extent_.products);
  return memory_.view(num_matrices * place_bytes(extent_.elements, type) + which * place_bytes(extent_.products, type),
                      type, {size, size});
}

View NewtonSchulz::orthogonalise(Stream& stream, std::int64_t rows, std::int64_t columns) const {
  View x = first(rows, columns);
  View next = second(rows, columns);
  const bool is_tall = rows > columns;
  const std::int64_t size = std::min(rows, columns);
  const View squares = product(0, size);
  const View polynomial = product(1, size);
  const auto [a, b, c] = newton_schulz_coefficients;
  for (int step = 0; step < newton_schulz_steps; ++step) {
    backend_.run(
        stream,
        MatrixProduct{
            .a = x, .b = x, .addend = {}, .output = squares, .a_is_transposed = is_tall, .b_is_transposed = !is_tall});
    // The squares are symmetric, and so is the polynomial, but for rounding: as a transpose either lies as kernels of
    // GPUs like it best.
    backend_.run(stream, MatrixProduct{.a = squares,
                                       .b = squares,
                                       .addend = squares,
                                       .output = polynomial,
                                       .b_is_transposed = true,
                                       .factor = c,
                                       .addend_factor = b});
    backend_.run(stream, MatrixProduct{.a = is_tall ? x : polynomial,
                                       .b = is_tall ? polynomial : x,
                                       .addend = x,
                                       .output = next,
                                       .b_is_transposed = is_tall,
                                       .factor = 1.0,
                                       .addend_factor = a});
    std::swap(x, next);
  }
  return x;
}

}  // namespace scaletrain
