// Matrix products of 16-bit operands that are summed in f32 memory. Where the processor has no instruction for them,
// blocks of operands become floats, which oneDNN multiplies; the tiles of matmul.cpp and attention_products.h are of
// the size that the scratch of a thread is made for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "backend/cpu/kernels.h"
#include "backend/cpu/panel_kernels.h"

namespace scaletrain::cpu {

// Scratch of one thread: blocks of operands, as floats or packed, and of f32 sums; of halves also the exponentials of a
// row of logits. Floats need it for what is multiplied by panels, in blocks of half as many elements.
inline constexpr std::size_t half_scratch_bytes = std::size_t{5} << 19;
template <class S>
constexpr std::size_t tile_scratch_bytes() {
  return std::is_same_v<S, float> ? std::size_t{7} << 18 : half_scratch_bytes;
}

// The kernels of a compute type, and what a thread may use beside them.
template <class S>
struct Engine {
  const Kernels& all;
  const TypedKernels<S>& typed;
  const PanelKernels<S>* panels;  // null: products are oneDNN's, of f32
  std::byte* scratch;             // for each worker, 64-byte aligned: tile_scratch_bytes
  // What workers pack for all of them, 64-byte aligned; none without panels.
  std::byte* shared = nullptr;
  std::size_t shared_bytes = 0;

  std::byte* scratch_of(int worker) const {
    return scratch + static_cast<std::size_t>(worker) * tile_scratch_bytes<S>();
  }
};

// Shared by all threads: a thousand rows of a thousand floats.
inline constexpr std::size_t shared_pack_bytes = std::size_t{4} << 20;

// The largest tile of wide_product.
inline constexpr std::int64_t max_wide_rows = 256;
inline constexpr std::int64_t max_wide_columns = 384;

// Bytes between the blocks of 48 rows that pack_a makes of `words` of k.
template <class S>
constexpr std::ptrdiff_t packed_block_bytes(const PanelKernels<S>& kernels, std::int64_t words) {
  if (kernels.packs_tiles == 0) return panel_block_rows * words * 4;
  return panel_block_rows * ((words + panel_tile_words - 1) / panel_tile_words * panel_tile_words) * 4;
}

// Names the blocks that pack_a has made of `words` of k as the tile's a.
template <class S>
void place_packed_a(PanelTile<S>& tile, const PanelKernels<S>& kernels, const S* blocks, std::int64_t words) {
  tile.a = blocks;
  tile.a_block_bytes = packed_block_bytes(kernels, words);
  tile.a_row_bytes = 4;
  tile.a_word_bytes = panel_block_rows * 4;
  if (kernels.packs_groups != 0) {
    tile.a_word_bytes = panel_group_rows * 4;
    tile.a_group_bytes = panel_group_rows * words * 4;
  }
  if (kernels.packs_tiles != 0) {
    tile.a_row_bytes = panel_tile_words * 4;
    tile.a_word_bytes = 4;
    tile.a_group_bytes = tile.a_block_bytes / panel_block_rows * panel_tile_rows;
    tile.a_tile_bytes = panel_tile_rows * panel_tile_words * 4;
  }
}

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
