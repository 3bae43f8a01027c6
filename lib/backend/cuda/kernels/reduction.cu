// Sums and maxima of what several ranks have, each element in the order of the ranks.
#include "backend/cuda/kernels/reduction.h"

#include <type_traits>

#include "backend/cuda/kernels/elements.h"
#include "backend/cuda/kernels/launching.h"

namespace scaletrain::cuda {

namespace {

// How elements are reduced: halves in f32.
template <class T>
using Wide = std::conditional_t<sizeof(T) == 2, float, T>;

template <class T>
__device__ inline Wide<T> widened(T value) {
  if constexpr (sizeof(T) == 2)
    return to_float(value);
  else
    return value;
}
template <class T>
__device__ inline T rounded(Wide<T> value) {
  if constexpr (sizeof(T) == 2)
    return from_float<T>(value);
  else
    return value;
}

struct Sum {
  template <class W>
  static __device__ W apply(W a, W b) {
    // Signed overflow wraps.
    if constexpr (std::is_integral_v<W>)
      return static_cast<W>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
    else
      return a + b;
  }
};
// A NaN on either side stays.
struct Maximum {
  template <class W>
  static __device__ W apply(W a, W b) {
    return b > a || b != b ? b : a;
  }
};

struct Operands {
  const std::byte* own;
  const std::byte* others;
  std::size_t stride;
  int own_place;
  int count;
};

template <class T>
__device__ inline const T* operand(const Operands& operands, int place) {
  if (place == operands.own_place) return reinterpret_cast<const T*>(operands.own);
  const int before = place < operands.own_place ? place : place - 1;
  return reinterpret_cast<const T*>(operands.others + static_cast<std::size_t>(before) * operands.stride);
}

template <class Operator, class T, int width>
__global__ void reduce(Operands operands, T* output, std::int64_t count) {
  const std::int64_t first = first_element<width>();
  if (first >= count) return;
  if (first + width <= count) {
    Wide<T> values[width];
    const Pack<T, width> start = *reinterpret_cast<const Pack<T, width>*>(operand<T>(operands, 0) + first);
#pragma unroll
    for (int i = 0; i < width; ++i) values[i] = widened<T>(start.values[i]);
    for (int place = 1; place < operands.count; ++place) {
      const Pack<T, width> next = *reinterpret_cast<const Pack<T, width>*>(operand<T>(operands, place) + first);
#pragma unroll
      for (int i = 0; i < width; ++i) values[i] = Operator::apply(values[i], widened<T>(next.values[i]));
    }
    Pack<T, width> result;
#pragma unroll
    for (int i = 0; i < width; ++i) result.values[i] = rounded<T>(values[i]);
    *reinterpret_cast<Pack<T, width>*>(output + first) = result;
  } else {
    for (std::int64_t i = first; i < count; ++i) {
      Wide<T> value = widened<T>(operand<T>(operands, 0)[i]);
      for (int place = 1; place < operands.count; ++place)
        value = Operator::apply(value, widened<T>(operand<T>(operands, place)[i]));
      output[i] = rounded<T>(value);
    }
  }
}

template <class Operator, class T>
void issue(cudaStream_t stream, const DeviceReduction& reduction) {
  const Operands operands{.own = reduction.own_data,
                          .others = reduction.others,
                          .stride = reduction.stride,
                          .own_place = reduction.own,
                          .count = reduction.operands};
  auto* const output = reinterpret_cast<T*>(reduction.output);
  const bool fits =
      fits_packs<T>(0, reduction.own_data, reduction.others, reduction.output) && reduction.stride % pack_bytes == 0;
  with_width<T>(fits, [&](auto width) {
    launch(stream, {blocks_for((reduction.count + width - 1) / width), threads_of_block}, reduce<Operator, T, width>,
           operands, output, reduction.count);
  });
}

template <class Operator>
void issue_typed(cudaStream_t stream, const DeviceReduction& reduction) {
  switch (reduction.dtype) {
    case DType::f32:
      return issue<Operator, float>(stream, reduction);
    case DType::f64:
      return issue<Operator, double>(stream, reduction);
    case DType::bf16:
      return issue<Operator, __nv_bfloat16>(stream, reduction);
    case DType::f16:
      return issue<Operator, __half>(stream, reduction);
    case DType::i64:
      return issue<Operator, std::int64_t>(stream, reduction);
    default:
      SCALETRAIN_CHECK(false && "such elements are not reduced");
  }
}

}  // namespace

void reduce_in_order(cudaStream_t stream, const DeviceReduction& reduction) {
  if (reduction.count == 0) return;
  SCALETRAIN_CHECK(reduction.operands >= 1 && reduction.own >= 0 && reduction.own < reduction.operands);
  if (reduction.op == DeviceReduction::Operator::sum)
    issue_typed<Sum>(stream, reduction);
  else
    issue_typed<Maximum>(stream, reduction);
}

}  // namespace scaletrain::cuda
