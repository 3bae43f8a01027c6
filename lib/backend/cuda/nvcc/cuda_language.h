// The language that kernels are written in, as nvcc compiles it: CUDA C++, and the little beside it that kernels may
// use. Tests have a header of the same name that lets the host's compiler compile the same kernels
// (tests/support/cuda/cuda_language.h): what is added here is added there.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <utility>

#include "backend/cuda/cuda_error.h"

namespace scaletrain::cuda {

// The dynamic shared memory of the block, as many bytes as it was launched with, aligned to 128. Kernels have no other
// shared memory.
template <class T>
__device__ inline T* shared_memory() {
  extern __shared__ __align__(128) unsigned char bytes[];
  return reinterpret_cast<T*>(bytes);
}

struct LaunchShape {
  dim3 blocks;
  unsigned threads = 0;  // of a block, a multiple of the 32 of a warp
  std::size_t shared_bytes = 0;
};

// Issues a kernel to a stream. What it refuses is a BugError.
template <class... Parameters, class... Arguments>
void launch(cudaStream_t stream, const LaunchShape& shape, void (*kernel)(Parameters...), Arguments&&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.blocks;
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), "the launch of a kernel");
}

}  // namespace scaletrain::cuda
