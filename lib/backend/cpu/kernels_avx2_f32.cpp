// f32 panels for processors with AVX2 and FMA.
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

// Words that are packed at a time: what is stored of a panel or group then fills cache lines, of which those of
// different panels and groups share sets of the cache.
constexpr size_t words_at_a_time = 8;

template <class Rows>
SCALETRAIN_INLINE void for_words(const float* matrix, ptrdiff_t stride, size_t columns, size_t k, const Rows& rows) {
  for (size_t word = 0; word < k; word += words_at_a_time) {
    const size_t count = k - word < words_at_a_time ? k - word : words_at_a_time;
    const float* const from = matrix + static_cast<ptrdiff_t>(word) * stride;
    for (size_t i = 0; i < count; ++i) prefetch_row(from + static_cast<ptrdiff_t>(prefetch_rows + i) * stride, columns);
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

using Vectors = V[lanes];

// rows[i] lane j -> rows[j] lane i.
SCALETRAIN_INLINE void transpose(Vectors& rows) {
  Vectors t;
#pragma GCC unroll 8
  for (size_t i = 0; i < lanes; i += 4) {
    const V low = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    const V high = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    const V next_low = _mm256_unpacklo_ps(rows[i + 2], rows[i + 3]);
    const V next_high = _mm256_unpackhi_ps(rows[i + 2], rows[i + 3]);
    t[i] = _mm256_shuffle_ps(low, next_low, 0x44);
    t[i + 1] = _mm256_shuffle_ps(low, next_low, 0xee);
    t[i + 2] = _mm256_shuffle_ps(high, next_high, 0x44);
    t[i + 3] = _mm256_shuffle_ps(high, next_high, 0xee);
  }
#pragma GCC unroll 8
  for (size_t i = 0; i < 4; ++i) {
    rows[i] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
  }
}

// Elements [0, count) of `rows` rows of a matrix, zeros elsewhere, turned.
SCALETRAIN_INLINE void load_turned(const float* matrix, ptrdiff_t stride, size_t rows, size_t count, Vectors& turned) {
#pragma GCC unroll 8
  for (size_t i = 0; i < lanes; ++i) {
    __builtin_prefetch(matrix + static_cast<ptrdiff_t>(prefetch_rows + i) * stride);
    turned[i] = i < rows ? load_up_to(matrix + static_cast<ptrdiff_t>(i) * stride, count) : V{};
  }
  transpose(turned);
}

void pack_columns(const float* matrix, ptrdiff_t stride, size_t columns, size_t k, float* panels,
                  ptrdiff_t panel_bytes) {
  for (size_t column = 0; column < columns; column += columns_of_panel) {
    auto* const panel = reinterpret_cast<float*>(reinterpret_cast<char*>(panels) +
                                                 static_cast<ptrdiff_t>(column / columns_of_panel) * panel_bytes);
    for (size_t half = 0; half < columns_of_panel; half += lanes) {
      const size_t left = column + half < columns ? columns - column - half : 0;
      const float* const from = matrix + static_cast<ptrdiff_t>(column + half) * stride;
      for (size_t word = 0; word < k; word += lanes) {
        Vectors turned;
        load_turned(from + word, stride, left, k - word, turned);
        const size_t count = k - word < lanes ? k - word : lanes;
        for (size_t i = 0; i < count; ++i) store(panel + (word + i) * columns_of_panel + half, turned[i]);
      }
    }
  }
}

// As pack_a has it.
void pack_a_rows(const float* matrix, ptrdiff_t stride, size_t rows, size_t k, float* blocks, ptrdiff_t block_bytes) {
  for (size_t row = 0; row < rows; row += group_rows) {
    auto* const block = reinterpret_cast<float*>(reinterpret_cast<char*>(blocks) +
                                                 static_cast<ptrdiff_t>(row / rows_of_block) * block_bytes);
    float* to = block + row % rows_of_block / group_rows * k * group_rows;
    const size_t left = rows - row < group_rows ? rows - row : group_rows;
    for (size_t word = 0; word < k; word += lanes) {
      Vectors turned;
      load_turned(matrix + static_cast<ptrdiff_t>(row) * stride + word, stride, left, k - word, turned);
      const size_t count = k - word < lanes ? k - word : lanes;
      const size_t inner = word + count < k ? count : count - 1;
      for (size_t i = 0; i < inner; ++i, to += group_rows) store(to, turned[i]);
      if (inner < count) store_first(to, turned[inner], group_rows);
    }
  }
}

// --- the softmax of attention ---

using Lanes = __m256i;
constexpr size_t word_elements = 1;

// Columns [column, column + 8) that are in [first, last).
SCALETRAIN_INLINE Lanes lanes_between(size_t column, size_t first, size_t last) {
  const Lanes below = lanes_below(column < last ? last - column : 0);
  return _mm256_andnot_si256(lanes_below(column < first ? first - column : 0), below);
}
SCALETRAIN_INLINE V load_lanes(const float* p, Lanes mask) {
  return _mm256_maskload_ps(p, mask);
}
SCALETRAIN_INLINE V load_lanes(const float* p, Lanes mask, V rest) {
  return _mm256_blendv_ps(rest, _mm256_maskload_ps(p, mask), _mm256_castsi256_ps(mask));
}
SCALETRAIN_INLINE void store_lanes(float* p, V v, Lanes mask) {
  _mm256_maskstore_ps(p, mask, v);
}
SCALETRAIN_INLINE V kept_lanes(V v, Lanes mask) {
  return _mm256_and_ps(v, _mm256_castsi256_ps(mask));
}
SCALETRAIN_INLINE V load_masked(const float* p, Lanes mask) {
  return load_lanes(p, mask);
}
SCALETRAIN_INLINE void store_rounded(float* p, V v) {
  store(p, v);
}
// A masked store takes some processors many times as long as a whole one.
SCALETRAIN_INLINE void store_first_rounded(float* p, V v, size_t count) {
  if (count >= lanes)
    store(p, v);
  else
    store_first(p, v, count);
}
SCALETRAIN_INLINE V exponential_below(V x) {
  return exponential(x);
}
SCALETRAIN_INLINE float sum_of_lanes(V v) {
  VH s = _mm256_castps256_ps128(v) + _mm256_extractf128_ps(v, 1);
  s += VH(_mm_movehl_ps(s, s));
  return s[0] + s[1];
}
SCALETRAIN_INLINE float largest_of_lanes(V v) {
  VH m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return m[0] > m[1] ? m[0] : m[1];
}

#include "backend/cpu/kernels_panel_softmax.inc"

}  // namespace

constinit const PanelKernels<float> f32_panels_avx2 = {.name = "avx2",
                                                       .title = "AVX2",
                                                       .columns = columns_of_panel,
                                                       .product = product,
                                                       .pack_columns = pack_columns,
                                                       .pack_rows = pack_rows,
                                                       .packs_groups = 1,
                                                       .packs_tiles = 0,
                                                       .pack_a = pack_a,
                                                       .pack_a_rows = pack_a_rows,
                                                       .softmax_forward = softmax_forward,
                                                       .softmax_backward = softmax_backward,
                                                       .row_dots = row_dots};

}  // namespace scaletrain::cpu
