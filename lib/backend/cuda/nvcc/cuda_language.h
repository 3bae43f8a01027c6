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

// Instructions of sm_80 and later, by the PTX ISA's names. All lanes of a warp come to those that name a warp.

// cp.async of 16 bytes: from global to shared memory beside what the thread does, until it waits for its copies. Others
// see them behind a barrier after that.
__device__ inline void copy_async(void* shared, const void* global) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))),
      "l"(global)
      : "memory");
}
// The same of 4 bytes, which need be aligned to no more.
__device__ inline void copy_word_async(void* shared, const void* global) {
  asm volatile(
      "cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))),
      "l"(global)
      : "memory");
}
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// ldmatrix: four matrices of 8 rows of 8 elements of 16 bits. Lane l tells where row l % 8 of matrix l / 8 lies
// (aligned to 16 bytes), and gets of each matrix elements 2·(l % 4) and the next of row l / 4; transposed: of rows 2·(l
// % 4) and the next, element l / 4.
__device__ inline void load_matrices(unsigned (&matrices)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
}
__device__ inline void load_matrices_transposed(unsigned (&matrices)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
}

// mma.m16n8k16 with sums in f32: c[16,8] += a[16,16] · b[16,8] of bf16 or fp16. With g = lane / 4 and t = lane % 4,
// each register holding two neighbours, a lane has of a: row g, columns 2t; row g + 8, the same; row g, columns 2t + 8;
// row g + 8, the same; of b: rows 2t of column g; rows 2t + 8; of c: row g, columns 2t and 2t + 1; row g + 8, the same.
template <class S>
__device__ void multiply_matrices(float (&c)[4], const unsigned (&a)[4], unsigned b_low, unsigned b_high);
template <>
__device__ inline void multiply_matrices<__nv_bfloat16>(float (&c)[4], const unsigned (&a)[4], unsigned b_low,
                                                        unsigned b_high) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_low), "r"(b_high));
}
template <>
__device__ inline void multiply_matrices<__half>(float (&c)[4], const unsigned (&a)[4], unsigned b_low,
                                                 unsigned b_high) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_low), "r"(b_high));
}

// ex2.approx.ftz: 2 to the power of x, off by no more than 2^-22 of it; zero where that is no normal number.
__device__ inline float approximate_exp2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// The word stays what it is, but the compiler no longer knows it: what was computed from it is computed anew, instead
// of being kept in registers.
__device__ inline void forget_results_of(unsigned& word) {
  asm volatile("" : "+r"(word));
}

struct LaunchShape {
  dim3 blocks;
  unsigned threads = 0;  // of a block, a multiple of the 32 of a warp
  std::size_t shared_bytes = 0;
};

// More shared memory must be asked for; more than this no GPU from sm_80 on lacks.
constexpr std::size_t default_shared_bytes = 48 << 10;
constexpr std::size_t most_shared_bytes = 99 << 10;

// Issues a kernel to a stream. What it refuses is a BugError.
template <class... Parameters, class... Arguments>
void launch(cudaStream_t stream, const LaunchShape& shape, void (*kernel)(Parameters...), Arguments&&... arguments) {
  if (shape.shared_bytes > default_shared_bytes)
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shape.shared_bytes)),
          "shared memory for a kernel");
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.blocks;
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), "the launch of a kernel");
}

}  // namespace scaletrain::cuda
