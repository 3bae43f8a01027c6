// For processors with AVX-512 bf16 (Intel since 2020, AMD since 2022). See bf16_kernels.h for the layouts.
#define SCALETRAIN_LANES 16
#include <immintrin.h>

#include "backend/cpu/bf16_kernels.h"

namespace scaletrain::cpu {

namespace {

#include "backend/cpu/simd.inc"

constexpr int panel_vectors = 4;
constexpr size_t panel_columns = panel_vectors * lanes;
constexpr size_t block_rows = bf16_block_rows;
// 6 rows of 4 vectors are 24 sums in registers, which hide the latency of the product; 4 vectors of b and one of a
// leave three of the 32 free.
constexpr int group_rows = 6;
static_assert(panel_columns == bf16_panel_columns && block_rows % group_rows == 0);

SCALETRAIN_INLINE __mmask16 lanes_below(size_t count) {
  return static_cast<__mmask16>(count >= lanes ? 0xffffU : (1U << count) - 1U);
}

SCALETRAIN_INLINE V load_masked(const Bf16* p, __mmask16 mask) {
  return widen(reinterpret_cast<V16>(_mm256_maskz_loadu_epi16(mask, p)), p);
}

// --- the product of a group of rows with one panel ---

struct Group {
  const char* a;
  const Bf16* b;
  float* sums;
  Bf16* output;
  const Bf16* bias;
  const Bf16* addend;
  size_t columns;  // of this panel
};

template <int rows, int vectors>
SCALETRAIN_INLINE void multiply(const Bf16Tile& t, const Group& g, V (&sums)[rows][vectors]) {
  const char* a = g.a;
  const auto* b = reinterpret_cast<const char*>(g.b);
  const ptrdiff_t row_bytes = t.a_row_bytes;
  for (size_t pair = 0; pair < t.pairs; ++pair) {
    __m512bh columns[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) columns[v] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b + v * 64));
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      int32_t both;
      __builtin_memcpy(&both, a + r * row_bytes, sizeof both);
      const auto row = reinterpret_cast<__m512bh>(_mm512_set1_epi32(both));
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], row, columns[v]);
    }
    a += t.a_pair_bytes;
    b += panel_columns * 4;
  }
}

template <int rows, int vectors>
void group_product(const Bf16Tile& t, const Group& g) {
  V sums[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v)
      sums[r][v] =
          t.begins ? V{}
                   : _mm512_maskz_loadu_ps(lanes_below(g.columns - v * lanes), g.sums + r * t.sums_stride + v * lanes);
  multiply<rows, vectors>(t, g, sums);
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      const __mmask16 mask = lanes_below(g.columns - v * lanes);
      V sum = sums[r][v] * t.alpha;
      if (!g.output) {
        _mm512_mask_storeu_ps(g.sums + r * t.sums_stride + v * lanes, mask, sum);
        continue;
      }
      if (g.bias) sum += load_masked(g.bias + v * lanes, mask);
      if (g.addend) sum += load_masked(g.addend + r * t.addend_stride + v * lanes, mask);
      _mm256_mask_storeu_epi16(g.output + r * t.output_stride + v * lanes, mask,
                               reinterpret_cast<__m256i>(narrow(sum, g.output)));
    }
}

using GroupProduct = void (*)(const Bf16Tile&, const Group&);
constexpr GroupProduct group_products[group_rows][panel_vectors] = {
    {group_product<1, 1>, group_product<1, 2>, group_product<1, 3>, group_product<1, 4>},
    {group_product<2, 1>, group_product<2, 2>, group_product<2, 3>, group_product<2, 4>},
    {group_product<3, 1>, group_product<3, 2>, group_product<3, 3>, group_product<3, 4>},
    {group_product<4, 1>, group_product<4, 2>, group_product<4, 3>, group_product<4, 4>},
    {group_product<5, 1>, group_product<5, 2>, group_product<5, 3>, group_product<5, 4>},
    {group_product<6, 1>, group_product<6, 2>, group_product<6, 3>, group_product<6, 4>},
};

// Panel by panel: a panel's part of b stays in the first-level cache or is read once from the second, which holds a.
void product(const Bf16Tile& t) {
  for (size_t column = 0; column < t.columns; column += panel_columns) {
    const size_t columns = t.columns - column < panel_columns ? t.columns - column : panel_columns;
    const auto vectors = static_cast<int>((columns + lanes - 1) / lanes);
    const auto panel = static_cast<ptrdiff_t>(column / panel_columns);
    const auto offset = static_cast<ptrdiff_t>(column);
    for (size_t row = 0; row < t.rows; row += group_rows) {
      const auto rows = static_cast<int>(t.rows - row < group_rows ? t.rows - row : group_rows);
      const auto at = static_cast<ptrdiff_t>(row);
      const Group group = {
          .a = static_cast<const char*>(t.a) + static_cast<ptrdiff_t>(row / block_rows) * t.a_block_bytes +
               static_cast<ptrdiff_t>(row % block_rows) * t.a_row_bytes,
          .b = reinterpret_cast<const Bf16*>(reinterpret_cast<const char*>(t.b) + panel * t.b_panel_bytes),
          .sums = t.sums ? t.sums + at * t.sums_stride + offset : nullptr,
          .output = t.output ? t.output + at * t.output_stride + offset : nullptr,
          .bias = t.bias ? t.bias + offset : nullptr,
          .addend = t.addend ? t.addend + at * t.addend_stride + offset : nullptr,
          .columns = columns};
      group_products[rows - 1][vectors - 1](t, group);
    }
  }
}

// --- packing ---

// rows[i] lane j -> rows[j] lane i.
SCALETRAIN_INLINE void transpose(__m512i (&rows)[lanes]) {
  __m512i t[lanes];
#pragma GCC unroll 16
  for (size_t i = 0; i < lanes; i += 2) {
    t[i] = _mm512_maskz_unpacklo_epi32(0xffff, rows[i], rows[i + 1]);
    t[i + 1] = _mm512_maskz_unpackhi_epi32(0xffff, rows[i], rows[i + 1]);
  }
#pragma GCC unroll 16
  for (size_t i = 0; i < lanes; i += 4) {
    rows[i] = _mm512_maskz_unpacklo_epi64(0xff, t[i], t[i + 2]);
    rows[i + 1] = _mm512_maskz_unpackhi_epi64(0xff, t[i], t[i + 2]);
    rows[i + 2] = _mm512_maskz_unpacklo_epi64(0xff, t[i + 1], t[i + 3]);
    rows[i + 3] = _mm512_maskz_unpackhi_epi64(0xff, t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 16
  for (size_t i = 0; i < 4; ++i) {
    t[i] = _mm512_maskz_shuffle_i32x4(0xffff, rows[i], rows[i + 4], 0x88);
    t[i + 4] = _mm512_maskz_shuffle_i32x4(0xffff, rows[i], rows[i + 4], 0xdd);
    t[i + 8] = _mm512_maskz_shuffle_i32x4(0xffff, rows[i + 8], rows[i + 12], 0x88);
    t[i + 12] = _mm512_maskz_shuffle_i32x4(0xffff, rows[i + 8], rows[i + 12], 0xdd);
  }
#pragma GCC unroll 16
  for (size_t i = 0; i < 4; ++i) {
    rows[i] = _mm512_maskz_shuffle_i32x4(0xffff, t[i], t[i + 8], 0x88);
    rows[i + 8] = _mm512_maskz_shuffle_i32x4(0xffff, t[i], t[i + 8], 0xdd);
    rows[i + 4] = _mm512_maskz_shuffle_i32x4(0xffff, t[i + 4], t[i + 12], 0x88);
    rows[i + 12] = _mm512_maskz_shuffle_i32x4(0xffff, t[i + 4], t[i + 12], 0xdd);
  }
}

void pack_columns(const Bf16* matrix, ptrdiff_t stride, size_t columns, size_t k, Bf16* panels, ptrdiff_t panel_bytes) {
  const size_t pairs = (k + 1) / 2;
  for (size_t column = 0; column < columns; column += lanes) {
    char* const panel = reinterpret_cast<char*>(panels) + static_cast<ptrdiff_t>(column / panel_columns) * panel_bytes +
                        column % panel_columns * 4;
    for (size_t pair = 0; pair < pairs; pair += lanes) {
      const size_t left = k - 2 * pair;
      const __mmask32 mask = left >= 2 * lanes ? 0xffffffffU : (1U << left) - 1U;
      __m512i rows[lanes];
#pragma GCC unroll 16
      for (size_t i = 0; i < lanes; ++i)
        rows[i] = column + i < columns
                      ? _mm512_maskz_loadu_epi16(mask, matrix + static_cast<ptrdiff_t>(column + i) * stride + 2 * pair)
                      : _mm512_setzero_si512();
      transpose(rows);
      const size_t count = pairs - pair < lanes ? pairs - pair : lanes;
      for (size_t i = 0; i < count; ++i) _mm512_storeu_si512(panel + (pair + i) * panel_columns * 4, rows[i]);
    }
  }
  // The rest of the last panel.
  const size_t rest = (columns + lanes - 1) / lanes * lanes % panel_columns;
  if (rest == 0) return;
  char* const panel = reinterpret_cast<char*>(panels) + static_cast<ptrdiff_t>(columns / panel_columns) * panel_bytes;
  for (size_t pair = 0; pair < pairs; ++pair)
    for (size_t column = rest; column < panel_columns; column += lanes)
      _mm512_storeu_si512(panel + (pair * panel_columns + column) * 4, _mm512_setzero_si512());
}

// Elements i of `first` and of `second` side by side.
SCALETRAIN_INLINE VBits side_by_side(V16 first, V16 second) {
  return __builtin_convertvector(first, VBits) | (__builtin_convertvector(second, VBits) << 16);
}

// Pairs of rows [k, k+1] as panels or blocks of `width` columns. load(row, column, mask): 16 elements.
template <size_t width, class Load>
SCALETRAIN_INLINE void interleave(size_t columns, size_t k, Bf16* output, ptrdiff_t bytes, Load load) {
  const size_t padded = (columns + width - 1) / width * width;
  for (size_t row = 0; row < k; row += 2)
    for (size_t column = 0; column < padded; column += lanes) {
      const __mmask16 mask = column < columns ? lanes_below(columns - column) : __mmask16{0};
      const V16 first = load(row, column, mask);
      const V16 second = row + 1 < k ? load(row + 1, column, mask) : V16{};
      char* const to = reinterpret_cast<char*>(output) + static_cast<ptrdiff_t>(column / width) * bytes +
                       (row / 2 * width + column % width) * 4;
      const VBits pairs = side_by_side(first, second);
      __builtin_memcpy(to, &pairs, sizeof pairs);
    }
}

void pack_rows(const Bf16* matrix, ptrdiff_t stride, size_t columns, size_t k, Bf16* panels, ptrdiff_t panel_bytes) {
  interleave<panel_columns>(columns, k, panels, panel_bytes, [=](size_t row, size_t column, __mmask16 mask) {
    return reinterpret_cast<V16>(
        _mm256_maskz_loadu_epi16(mask, matrix + static_cast<ptrdiff_t>(row) * stride + column));
  });
}

void pack_a(const Bf16* matrix, ptrdiff_t stride, size_t rows, size_t k, Bf16* blocks, ptrdiff_t block_bytes) {
  interleave<block_rows>(rows, k, blocks, block_bytes, [=](size_t row, size_t column, __mmask16 mask) {
    return reinterpret_cast<V16>(
        _mm256_maskz_loadu_epi16(mask, matrix + static_cast<ptrdiff_t>(row) * stride + column));
  });
}

void pack_a_floats(const float* matrix, ptrdiff_t stride, size_t rows, size_t k, Bf16* blocks, ptrdiff_t block_bytes) {
  interleave<block_rows>(rows, k, blocks, block_bytes, [=](size_t row, size_t column, __mmask16 mask) {
    return narrow(_mm512_maskz_loadu_ps(mask, matrix + static_cast<ptrdiff_t>(row) * stride + column), blocks);
  });
}

void round_rows(const float* matrix, ptrdiff_t stride, size_t rows, size_t columns, Bf16* output,
                ptrdiff_t output_stride) {
  const size_t padded = (columns + 1) / 2 * 2;
  for (size_t row = 0; row < rows; ++row) {
    const float* in = matrix + static_cast<ptrdiff_t>(row) * stride;
    Bf16* out = output + static_cast<ptrdiff_t>(row) * output_stride;
    for (size_t column = 0; column < padded; column += lanes) {
      const __mmask16 held = column < columns ? lanes_below(columns - column) : __mmask16{0};
      const V16 bits = narrow(_mm512_maskz_loadu_ps(held, in + column), out);
      _mm256_mask_storeu_epi16(out + column, lanes_below(padded - column), reinterpret_cast<__m256i>(bits));
    }
  }
}

}  // namespace

const Bf16Kernels& bf16_kernels_avx512() {
  static constexpr Bf16Kernels table = {.product = product,
                                        .pack_columns = pack_columns,
                                        .pack_rows = pack_rows,
                                        .pack_a = pack_a,
                                        .pack_a_floats = pack_a_floats,
                                        .round_rows = round_rows};
  return table;
}

}  // namespace scaletrain::cpu
