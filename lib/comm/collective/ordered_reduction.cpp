#include "comm/collective/ordered_reduction.h"

#include <bit>
#include <cstring>

#include "base/error.h"
#include "tensor/halves.h"

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

// How elements of T are summed: in another type, f32 for halves, and rounded once at the end.
template <class T>
struct Element {
  using Wide = T;
  static T widen(T value) { return value; }
  static T round(T value) { return value; }
};
template <>
struct Element<Bf16> {
  using Wide = float;
  static float widen(Bf16 value) { return std::bit_cast<float>(std::uint32_t{value.bits} << 16); }
  // To nearest even, as bf16_from_float, in steps that become vector code.
  static Bf16 round(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;
    Bf16 out;
    out.bits = static_cast<std::uint16_t>(value != value ? (bits >> 16 | 0x40U) : rounded);
    return out;
  }
};
template <>
struct Element<F16> {
  using Wide = float;
  static float widen(F16 value) { return float_from_f16(value.bits); }
  static F16 round(float value) {
    F16 out;
    out.bits = f16_from_float(value);
    return out;
  }
};

template <class T, class Op>
void reduce_block(typename Element<T>::Wide* __restrict result, const T* __restrict a, const T* __restrict b) {
  using E = Element<T>;
  for (int i = 0; i < block_elements; ++i) result[i] = Op::apply(E::widen(a[i]), E::widen(b[i]));
}
template <class T, class Op>
void add_block(typename Element<T>::Wide* __restrict result, const T* __restrict a) {
  for (int i = 0; i < block_elements; ++i) result[i] = Op::apply(result[i], Element<T>::widen(a[i]));
}

template <class T, template <class> class Operator>
void reduce_typed(std::span<const std::byte* const> operands, std::byte* output, std::int64_t count) {
  using E = Element<T>;
  using Wide = typename E::Wide;
  using Op = Operator<Wide>;
  const auto at = [&](std::size_t operand, std::int64_t first) {
    return reinterpret_cast<const T*>(operands[operand]) + first;
  };
  T* const out = reinterpret_cast<T*>(output);
  alignas(64) Wide result[block_elements];
  alignas(64) T rounded[block_elements];
  std::int64_t first = 0;
  for (; first + block_elements <= count; first += block_elements) {
    reduce_block<T, Op>(result, at(0, first), at(1, first));
    for (std::size_t operand = 2; operand < operands.size(); ++operand) add_block<T, Op>(result, at(operand, first));
    // Only now: the output may be an operand.
    for (int i = 0; i < block_elements; ++i) rounded[i] = E::round(result[i]);
    std::memcpy(out + first, rounded, sizeof(rounded));
  }
  for (; first < count; ++first) {
    Wide value = E::widen(*at(0, first));
    for (std::size_t operand = 1; operand < operands.size(); ++operand)
      value = Op::apply(value, E::widen(*at(operand, first)));
    out[first] = E::round(value);
  }
}

template <class T>
void reduce_by(ReduceOp op, std::span<const std::byte* const> operands, std::byte* output, std::int64_t count) {
  if (op == ReduceOp::sum) {
    reduce_typed<T, Sum>(operands, output, count);
  } else {
    reduce_typed<T, Max>(operands, output, count);
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
    case DType::bf16:
      return reduce_by<Bf16>(op, operands, output, count);
    case DType::f16:
      return reduce_by<F16>(op, operands, output, count);
    default:
      SCALETRAIN_CHECK(false && "such elements are not reduced");
  }
}

}  // namespace scaletrain
