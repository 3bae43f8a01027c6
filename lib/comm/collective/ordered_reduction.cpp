#include "comm/collective/ordered_reduction.h"

#include <cstring>

#include "base/error.h"

namespace scaletrain {

namespace {

// Elements that are reduced in the first-level cache before they are written: each operand is read once and the output
// written once, however many ranks there are. A constant, so that the loops have no remainder and become vector code.
constexpr int block_elements = 1024;

template <class T>
struct Sum {
  static T apply(T a, T b) { return a + b; }
};
// Signed overflow wraps, as it does in any vector unit.
template <>
struct Sum<std::int64_t> {
  static std::int64_t apply(std::int64_t a, std::int64_t b) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  }
};
// A NaN on either side stays.
template <class T>
struct Max {
  static T apply(T a, T b) { return b > a || b != b ? b : a; }
};

template <class T, class Op>
void reduce_block(T* __restrict result, const T* __restrict a, const T* __restrict b) {
  for (int i = 0; i < block_elements; ++i) result[i] = Op::apply(a[i], b[i]);
}
template <class T, class Op>
void add_block(T* __restrict result, const T* __restrict a) {
  for (int i = 0; i < block_elements; ++i) result[i] = Op::apply(result[i], a[i]);
}

template <class T, class Op>
void reduce_typed(std::span<const std::byte* const> operands, std::byte* output, std::int64_t count) {
  const auto at = [&](std::size_t operand, std::int64_t first) {
    return reinterpret_cast<const T*>(operands[operand]) + first;
  };
  T* const out = reinterpret_cast<T*>(output);
  alignas(64) T result[block_elements];
  std::int64_t first = 0;
  for (; first + block_elements <= count; first += block_elements) {
    reduce_block<T, Op>(result, at(0, first), at(1, first));
    for (std::size_t operand = 2; operand < operands.size(); ++operand) add_block<T, Op>(result, at(operand, first));
    // Only now: the output may be an operand.
    std::memcpy(out + first, result, sizeof(result));
  }
  for (; first < count; ++first) {
    T value = *at(0, first);
    for (std::size_t operand = 1; operand < operands.size(); ++operand) value = Op::apply(value, *at(operand, first));
    out[first] = value;
  }
}

template <class T>
void reduce_by(ReduceOp op, std::span<const std::byte* const> operands, std::byte* output, std::int64_t count) {
  if (op == ReduceOp::sum) {
    reduce_typed<T, Sum<T>>(operands, output, count);
  } else {
    reduce_typed<T, Max<T>>(operands, output, count);
  }
}

}  // namespace

void reduce_in_order(DType dtype, ReduceOp op, std::span<const std::byte* const> operands, std::byte* output,
                     std::int64_t count) {
  SCALETRAIN_CHECK(!operands.empty());
  if (count == 0) return;
  if (operands.size() == 1) {
    if (operands[0] != output) std::memcpy(output, operands[0], static_cast<std::size_t>(count) * size_of(dtype));
    return;
  }
  switch (dtype) {
    case DType::f32:
      return reduce_by<float>(op, operands, output, count);
    case DType::f64:
      return reduce_by<double>(op, operands, output, count);
    case DType::i64:
      return reduce_by<std::int64_t>(op, operands, output, count);
    default:
      SCALETRAIN_CHECK(dtype == DType::f32 || dtype == DType::f64 || dtype == DType::i64);
  }
}

}  // namespace scaletrain
