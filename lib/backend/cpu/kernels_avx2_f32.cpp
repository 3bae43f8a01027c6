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

SCALETRAIN_INLINE V load_up_to(const float* p, size_t count) {
  return count >= lanes ? load(p) : load_first(p, count);
}

SCALETRAIN_INLINE void prefetch_row(const float* row, size_t columns) {
  for (size_t column = 0; column < columns; column += line_floats) __builtin_prefetch(row + column);
}

// Words that are packed at a time: what is stored of a panel or group then fills cache lines, of which those of different
// panels and groups share sets of the cache.
constexpr size_t words_at_a_time = 8;

template <class Rows>
SCALETRAIN_INLINE void for_words(const float* matrix, ptrdiff_t stride, size_t columns, size_t k, const Rows& rows) {
  for (size_t word = 0; word < k; word += words_at_a_time) {
    const size_t count = k - word < words_at_a_time ? k - word : words_at_a_time;
    const float* const from = matrix + static_cast<ptrdiff_t>(word) * stride;
    for (size_t i = 0; i < count; ++i)
      prefetch_row(from + static_cast<ptrdiff_t>(prefetch_rows + i) * stride, columns);
    rows(from, word, count);
  }
}

void pack_rows(const float* matrix, ptrdiff_t stride, size_t columns, size_t k, float* panels, ptrdiff_t panel_bytes) {
  for_words(matrix, stride, columns, k, [&](const float* from, size_t word, size_t count) {
    auto* panel = reinterpret_cast<char*>(panels + word * columns_of_panel);
    for (size_t column = 0; column < columns; column += columns_of_panel, panel += panel_bytes) {
      const size_t left = columns - column;
      auto* to = reinterpret_cast<float*>(panel);
      const float* row = from + column;
      for (size_t i = 0; i < count; ++i, row += stride, to += columns_of_panel) {
        store(to, load_up_to(row, left));
        store(to + lanes, left > lanes ? load_up_to(row + lanes, left - lanes) : V{});
      }
    }
  });
}

// Groups of 6 rows, so that what a product reads next follows in memory: blocks of 48 rows as they are packed elsewhere
// cost a cache line for each word, and with a panel they do not fit into the first-level cache. A store of 8 reaches
// into the next word, which is written later, but for the last.
void pack_a(const float* matrix, ptrdiff_t stride, size_t rows, size_t k, float* blocks, ptrdiff_t block_bytes) {
  for_words(matrix, stride, rows, k, [&](const float* from, size_t word, size_t count) {
    const size_t inner = word + count < k ? count : count - 1;
    for (size_t row = 0; row < rows; row += group_rows) {
      auto* const block = reinterpret_cast<float*>(reinterpret_cast<char*>(blocks) +
                                                   static_cast<ptrdiff_t>(row / rows_of_block) * block_bytes);
      float* to = block + (row % rows_of_block / group_rows * k + word) * group_rows;
      const float* at = from + row;
      const size_t left = rows - row;
      for (size_t i = 0; i < inner; ++i, at += stride, to += group_rows) store(to, load_up_to(at, left));
      if (inner < count) store_first(to, load_up_to(at, left), group_rows);
    }
  });
}

}  // namespace

constinit const PanelKernels<float> f32_panels_avx2 = {.name = "avx2",
                                                       .title = "AVX2",
                                                       .columns = columns_of_panel,
                                                       .product = product,
                                                       .pack_columns = nullptr,
                                                       .pack_rows = pack_rows,
                                                       .packs_groups = 1,
                                                       .packs_tiles = 0,
                                                       .pack_a = pack_a,
                                                       .pack_a_rows = nullptr,
                                                       .softmax_forward = nullptr,
                                                       .softmax_backward = nullptr,
                                                       .row_dots = nullptr};

}  // namespace scaletrain::cpu
