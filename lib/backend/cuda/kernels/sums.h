// Sums over the lanes of a warp and the threads of a block, in an order that does not change.
#pragma once

#include "cuda_language.h"

namespace scaletrain::cuda {

constexpr int warp_lanes = 32;
constexpr unsigned all_lanes = 0xffffffffU;

// Every lane gets the sum.
template <class T>
__device__ inline T warp_sum(T value) {
#pragma unroll
  for (int lanes = warp_lanes / 2; lanes > 0; lanes /= 2) value += __shfl_xor_sync(all_lanes, value, lanes);
  return value;
}

__device__ inline float warp_maximum(float value) {
#pragma unroll
  for (int lanes = warp_lanes / 2; lanes > 0; lanes /= 2)
    value = fmaxf(value, __shfl_xor_sync(all_lanes, value, lanes));
  return value;
}

// Every thread gets the sum. shared: a T for each warp. All threads of the block call it; what they read of `shared`
// before, they have read.
template <class T>
__device__ inline T block_sum(T value, T* shared) {
  value = warp_sum(value);
  __syncthreads();
  if (threadIdx.x % warp_lanes == 0) shared[threadIdx.x / warp_lanes] = value;
  __syncthreads();
  T sum = 0;
  for (unsigned warp = 0; warp < blockDim.x / warp_lanes; ++warp) sum += shared[warp];
  return sum;
}

// The same of the largest value.
__device__ inline float block_maximum(float value, float* shared) {
  value = warp_maximum(value);
  __syncthreads();
  if (threadIdx.x % warp_lanes == 0) shared[threadIdx.x / warp_lanes] = value;
  __syncthreads();
  float most = shared[0];
  for (unsigned warp = 1; warp < blockDim.x / warp_lanes; ++warp) most = fmaxf(most, shared[warp]);
  return most;
}

}  // namespace scaletrain::cuda
