#include "optim/newton_schulz.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/numbers/checked.h"

namespace scaletrain {

namespace {

constexpr std::size_t num_matrices = 2;
constexpr std::size_t num_products = 3;

std::size_t place_bytes(std::int64_t elements, DType type) {
  return align_up(static_cast<std::size_t>(elements) * size_of(type));
}

// Where sums of a tall matrix's rows have a type of their own, they are made there first.
std::int64_t sums_of(const NewtonSchulzExtent& extent, DType compute) {
  return accumulator_type(compute) == compute ? 0 : extent.products_of_tall;
}

bool is_tall(const View& x) {
  return x.shape()[0] > x.shape()[1];
}

}  // namespace

void NewtonSchulzExtent::include(std::int64_t rows, std::int64_t columns) {
  const std::int64_t size = std::min(rows, columns);
  elements = std::max(elements, checked_mul(rows, columns));
  products = std::max(products, checked_mul(size, size));
  if (rows > columns) products_of_tall = std::max(products_of_tall, checked_mul(size, size));
}

NewtonSchulz::NewtonSchulz(Backend& backend, const NewtonSchulzExtent& extent)
    : backend_(backend), extent_(extent), memory_(backend.allocate(bytes(extent, backend.compute_type()))) {}

std::size_t NewtonSchulz::bytes(const NewtonSchulzExtent& extent, DType compute) {
  return num_matrices * place_bytes(extent.elements, compute) + num_products * place_bytes(extent.products, compute) +
         place_bytes(sums_of(extent, compute), accumulator_type(compute));
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

// X·Xᵀ, of a tall matrix Xᵀ·X.
void NewtonSchulz::multiply_by_transpose(Stream& stream, const View& x, const View& out) const {
  if (!is_tall(x))
    return backend_.run(stream, LinearForward{.weight = {x}, .bias = {}, .input = x, .addend = {}, .output = out});
  const DType type = backend_.compute_type();
  const bool is_direct = accumulator_type(type) == type;
  const View sums = is_direct ? out
                              : memory_.view(num_matrices * place_bytes(extent_.elements, type) +
                                                 num_products * place_bytes(extent_.products, type),
                                             accumulator_type(type), out.shape());
  backend_.run(stream, Fill{.output = sums, .value = 0.0});
  backend_.run(stream, LinearBackwardWeight{.input = x, .d_output = x, .d_weight = sums, .d_bias = {}});
  if (!is_direct) backend_.run(stream, Copy{.input = sums, .output = out});
}

View NewtonSchulz::orthogonalise(Stream& stream, std::int64_t rows, std::int64_t columns) const {
  View x = first(rows, columns);
  View next = second(rows, columns);
  const std::int64_t size = std::min(rows, columns);
  const View squares = product(0, size);
  const View scaled = product(1, size);
  const View polynomial = product(2, size);
  const auto [a, b, c] = newton_schulz_coefficients;
  for (int step = 0; step < newton_schulz_steps; ++step) {
    multiply_by_transpose(stream, x, squares);
    backend_.run(stream, Scale{.input = squares, .output = scaled, .factor = c});
    backend_.run(stream, Scale{.input = squares, .output = polynomial, .factor = b});
    backend_.run(
        stream,
        LinearForward{.weight = {scaled}, .bias = {}, .input = squares, .addend = polynomial, .output = polynomial});
    if (is_tall(x))
      backend_.run(stream, LinearForward{.weight = {polynomial}, .bias = {}, .input = x, .addend = {}, .output = next});
    else
      backend_.run(stream, LinearBackwardInput{.weight = {x}, .d_output = polynomial, .d_input = next});
    backend_.run(stream, Scale{.input = x, .output = x, .factor = a});
    backend_.run(stream, Add{.a = next, .b = x, .output = next});
    std::swap(x, next);
  }
  return x;
}

}  // namespace scaletrain
