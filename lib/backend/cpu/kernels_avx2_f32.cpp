// f32 panels for processors with AVX2 and FMA: what gradients of weights need.
#define SCALETRAIN_LANES 8
#include <immintrin.h>

#include "backend/cpu/panel_kernels.h"

namespace scaletrain::cpu {

namespace {

#include "backend/cpu/simd.inc"

using Element = float;
using Words = V;

SCALETRAIN_INLINE Words load_words(const char* p) {
  Words words;
  __builtin_memcpy(&words, p, sizeof words);
  return words;
}
SCALETRAIN_INLINE Words broadcast_word(const char* p) {
  float word;
  __builtin_memcpy(&word, p, sizeof word);
  return splat(word);
}
SCALETRAIN_INLINE V multiply_add(Words row, Words columns, V sum) {
  return fma(row, columns, sum);
}

SCALETRAIN_INLINE __m256i lanes_below(size_t count) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count < lanes ? count : lanes)), lane);
}
// The first `count` floats, zeros after them.
SCALETRAIN_INLINE V load_first(const float* p, size_t count) {
  return _mm256_maskload_ps(p, lanes_below(count));
}
SCALETRAIN_INLINE void store_first(float* p, V v, size_t count) {
  _mm256_maskstore_ps(p, lanes_below(count), v);
}

#include "backend/cpu/kernels_panel_product.inc"

// --- packing ---

// A tile's part of a row is short and the next row far away: processors do not see the pattern by themselves.
constexpr size_t prefetch_rows = 16;
constexpr size_t line_floats = 16;

// Rows as panels or blocks of `width` columns.
template <size_t width>
SCALETRAIN_INLINE void pack_words(const float* matrix, ptrdiff_t stride, size_t columns, size_t k, float* output,
                                  ptrdiff_t bytes) {
  const size_t padded = (columns + width - 1) / width * width;
  for (size_t row = 0; row < k; ++row) {
    const float* const from = matrix + static_cast<ptrdiff_t>(row) * stride;
    for (size_t column = 0; column < columns; column += line_floats)
      __builtin_prefetch(from + static_cast<ptrdiff_t>(prefetch_rows) * stride + column);
    for (size_t column = 0; column < padded; column += lanes) {
      char* const to = reinterpret_cast<char*>(output) + static_cast<ptrdiff_t>(column / width) * bytes +
                       (row * width + column % width) * 4;
      const V values = column + lanes <= columns ? load(from + column)
                       : column < columns        ? load_first(from + column, columns - column)
                                                 : V{};
      store(reinterpret_cast<float*>(to), values);
    }
  }
}

void pack_rows(const float* matrix, ptrdiff_t stride, size_t columns, size_t k, float* panels, ptrdiff_t panel_bytes) {
  pack_words<columns_of_panel>(matrix, stride, columns, k, panels, panel_bytes);
}

void pack_a(const float* matrix, ptrdiff_t stride, size_t rows, size_t k, float* blocks, ptrdiff_t block_bytes) {
  pack_words<rows_of_block>(matrix, stride, rows, k, blocks, block_bytes);
}

}  // namespace

// A panel of 256 words is 16 KiB, half of the first-level cache of processors with AVX2 alone.
constinit const PanelKernels<float> f32_panels_avx2 = {.name = "avx2",
                                                       .title = "AVX2",
                                                       .columns = columns_of_panel,
                                                       .gradient_words = 256,
                                                       .product = product,
                                                       .pack_columns = nullptr,
                                                       .pack_rows = pack_rows,
                                                       .packs_rows = 0,
                                                       .pack_a = pack_a,
                                                       .softmax_forward = nullptr,
                                                       .softmax_backward = nullptr,
                                                       .row_dots = nullptr};

}  // namespace scaletrain::cpu
