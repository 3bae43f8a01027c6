// Elements of the compute types in kernels: packs that are read and written at once, and their values as f32, in which
// all is computed. Read behind cuda_language.h.
#pragma once

#include <cstdint>

#include "cuda_language.h"

namespace scaletrain::cuda {

// What memory moves fastest: 16 bytes a thread.
constexpr int pack_bytes = 16;
template <class S>
constexpr int pack_elements = pack_bytes / static_cast<int>(sizeof(S));

template <class S, int count>
struct alignas(sizeof(S) * count) Pack {
  S values[count];
};

__device__ inline float to_float(float value) {
  return value;
}
__device__ inline float to_float(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
__device__ inline float to_float(__half value) {
  return __half2float(value);
}

// Rounded to nearest, ties to even.
template <class S>
__device__ S from_float(float value);
template <>
__device__ inline float from_float<float>(float value) {
  return value;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ inline __half from_float<__half>(float value) {
  return __float2half_rn(value);
}

// `count` elements at p, of which `left` are there; the others are read as `absent` and not written.
template <int count, class S>
__device__ inline void load(const S* p, std::int64_t left, float (&values)[count], float absent = 0.0F) {
  if (left >= count) {
    const Pack<S, count> pack = *reinterpret_cast<const Pack<S, count>*>(p);
#pragma unroll
    for (int i = 0; i < count; ++i) values[i] = to_float(pack.values[i]);
  } else {
#pragma unroll
    for (int i = 0; i < count; ++i) values[i] = i < left ? to_float(p[i]) : absent;
  }
}
template <int count, class S>
__device__ inline void store(S* p, std::int64_t left, const float (&values)[count]) {
  if (left >= count) {
    Pack<S, count> pack;
#pragma unroll
    for (int i = 0; i < count; ++i) pack.values[i] = from_float<S>(values[i]);
    *reinterpret_cast<Pack<S, count>*>(p) = pack;
  } else {
#pragma unroll
    for (int i = 0; i < count; ++i)
      if (i < left) p[i] = from_float<S>(values[i]);
  }
}

// The first of `count` elements that this thread of a one-dimensional grid computes.
template <int count>
__device__ inline std::int64_t first_element() {
  return (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * count;
}

constexpr float log2_of_e = 1.4426950408889634F;

// 2 to the power of x: in halves by the instruction alone, whose error their rounding hides.
template <class S>
__device__ inline float exp2_of(float x) {
  if constexpr (sizeof(S) == 2)
    return approximate_exp2(x);
  else
    return exp2f(x);
}

// e to the power of x - base, alike.
template <class S>
__device__ inline float exp_of_difference(float x, float base) {
  if constexpr (sizeof(S) == 2)
    return approximate_exp2((x - base) * log2_of_e);
  else
    return expf(x - base);
}

}  // namespace scaletrain::cuda
