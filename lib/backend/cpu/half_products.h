// Matrix products of 16-bit operands that are summed in f32 memory. Where the processor has no instruction for them,
// blocks of operands become floats, which oneDNN multiplies; the tiles of matmul.cpp and attention_halves.cpp are of
// the size that the scratch of a thread is made for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "backend/cpu/bf16_kernels.h"
#include "backend/cpu/kernels.h"

namespace scaletrain::cpu {

// The kernels of a compute type, and what a thread may use beside them.
template <class S>
struct Engine {
  const Kernels& all;
  const TypedKernels<S>& typed;
  const Bf16Kernels* bf16;  // null: products are f32
  std::byte* scratch;       // for each worker, 64-byte aligned: attention.h says how much
};

// Scratch of one thread for operations on halves: blocks of operands, as floats or packed, and of f32 sums.
inline constexpr std::size_t half_scratch_bytes = std::size_t{5} << 19;

// The largest tile of wide_product.
inline constexpr std::int64_t max_wide_rows = 256;
inline constexpr std::int64_t max_wide_columns = 384;

// Names the blocks that pack_a has made of elements of k as the tile's a. block_bytes: of each.
std::ptrdiff_t packed_block_bytes(std::int64_t k);
void place_packed_a(Bf16Tile& tile, const Bf16Kernels& kernels, const Bf16* blocks, std::int64_t k);

template <class T>
struct MatrixOf {
  const T* data = nullptr;
  std::int64_t stride = 0;  // elements between rows as they lie in memory
  bool transposed = false;
};

// c[m,n] = alpha · a[m,k] · b[k,n] + beta · c, m and n up to the largest tile. As Sgemm otherwise. A: S or float.
template <class A, class S>
struct WideProduct {
  std::int64_t m = 0, n = 0, k = 0;
  float alpha = 1.0F;
  MatrixOf<A> a;
  MatrixOf<S> b;
  float beta = 0.0F;
  float* c = nullptr;
  std::int64_t c_stride = 0;
};

// scratch: wide_scratch_bytes.
inline constexpr std::int64_t wide_k = 512;  // elements of k that are converted at a time
inline constexpr std::size_t wide_scratch_bytes =
    static_cast<std::size_t>((max_wide_rows + max_wide_columns) * wide_k) * sizeof(float);
template <class A, class S>
void wide_product(const TypedKernels<S>& kernels, std::byte* scratch, const WideProduct<A, S>& product);

}  // namespace scaletrain::cpu
