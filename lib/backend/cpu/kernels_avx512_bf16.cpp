// For processors with AVX-512 bf16 (Intel since 2020, AMD since 2022). See bf16_kernels.h for the layouts.
#define SCALETRAIN_LANES 16
#include <immintrin.h>

#include "backend/cpu/bf16_kernels.h"

namespace scaletrain::cpu {

namespace {

#include "backend/cpu/simd.inc"
#include "backend/cpu/simd_bf16.inc"

constexpr int panel_vectors = 4;
constexpr size_t panel_columns = panel_vectors * lanes;
constexpr size_t block_rows = bf16_block_rows;
// 6 rows of 4 vectors are 24 sums in registers, which hide the latency of the product; 4 vectors of b and one of a
// leave three of the 32 free.
constexpr int group_rows = 6;
static_assert(panel_columns == bf16_panel_columns && block_rows % group_rows == 0);

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

// Vector `v` of a row's columns, of which `columns` are left. Only the last panel of a matrix needs masks, whose stores
// are slow on some processors.
template <bool full>
SCALETRAIN_INLINE V load_columns(const float* p, size_t columns) {
  return full ? load(p) : V(_mm512_maskz_loadu_ps(lanes_below(columns), p));
}
template <bool full>
SCALETRAIN_INLINE V load_columns(const Bf16* p, size_t columns) {
  return full ? load(p) : load_masked(p, lanes_below(columns));
}
template <bool full>
SCALETRAIN_INLINE void store_columns(float* p, V v, size_t columns) {
  if (full)
    store(p, v);
  else
    _mm512_mask_storeu_ps(p, lanes_below(columns), v);
}
template <bool full>
SCALETRAIN_INLINE void store_columns(Bf16* p, V v, size_t columns) {
  if (full)
    store_rounded(p, v);
  else
    store_rounded(p, v, lanes_below(columns));
}

template <bool full, int rows, int vectors>
SCALETRAIN_INLINE void begin_sums(const Bf16Tile& t, const Group& g, V (&sums)[rows][vectors]) {
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v)
      sums[r][v] = t.begins ? V{} : load_columns<full>(g.sums + r * t.sums_stride + v * lanes, g.columns - v * lanes);
}

template <bool full, int rows, int vectors>
SCALETRAIN_INLINE void finish_sums(const Bf16Tile& t, const Group& g, const V (&sums)[rows][vectors]) {
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      const size_t left = g.columns - v * lanes;
      V sum = sums[r][v] * t.alpha;
      if (!g.output) {
        store_columns<full>(g.sums + r * t.sums_stride + v * lanes, sum, left);
        continue;
      }
      if (g.bias) sum += load_columns<full>(g.bias + v * lanes, left);
      if (g.addend) sum += load_columns<full>(g.addend + r * t.addend_stride + v * lanes, left);
      store_columns<full>(g.output + r * t.output_stride + v * lanes, sum, left);
    }
}

template <int rows, int vectors>
void group_product(const Bf16Tile& t, const Group& g) {
  V sums[rows][vectors];
  const bool full = g.columns == vectors * lanes;
  if (full)
    begin_sums<true>(t, g, sums);
  else
    begin_sums<false>(t, g, sums);
  multiply<rows, vectors>(t, g, sums);
  if (full)
    finish_sums<true>(t, g, sums);
  else
    finish_sums<false>(t, g, sums);
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

// The sums of the next group come while this one is multiplied.
SCALETRAIN_INLINE void prefetch_sums(const Bf16Tile& t, size_t row, size_t column) {
  for (size_t r = row; r < row + group_rows && r < t.rows; ++r)
    for (size_t c = 0; c < panel_columns; c += lanes)
      __builtin_prefetch(t.sums + static_cast<ptrdiff_t>(r) * t.sums_stride + static_cast<ptrdiff_t>(column + c), 1);
}

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
      if (!t.begins) prefetch_sums(t, row + group_rows, column);
      group_products[rows - 1][vectors - 1](t, group);
    }
  }
}

// --- packing ---

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

// A tile's part of a row is short and the next row far away: processors do not see the pattern by themselves.
constexpr size_t prefetch_rows = 32;

// Pairs of rows [k, k+1] as panels or blocks of `width` columns.
template <size_t width>
SCALETRAIN_INLINE void interleave(const Bf16* matrix, ptrdiff_t stride, size_t columns, size_t k, Bf16* output,
                                  ptrdiff_t bytes) {
  const auto at = [=](size_t row, size_t column) {
    return matrix + static_cast<ptrdiff_t>(row) * stride + static_cast<ptrdiff_t>(column);
  };
  const auto load = [=](size_t row, size_t column, __mmask16 mask) {
    return reinterpret_cast<V16>(_mm256_maskz_loadu_epi16(mask, at(row, column)));
  };
  const size_t padded = (columns + width - 1) / width * width;
  for (size_t row = 0; row < k; row += 2)
    for (size_t column = 0; column < padded; column += lanes) {
      const __mmask16 mask = column < columns ? lanes_below(columns - column) : __mmask16{0};
      __builtin_prefetch(at(row + prefetch_rows, column));
      __builtin_prefetch(at(row + prefetch_rows + 1, column));
      const V16 first = load(row, column, mask);
      const V16 second = row + 1 < k ? load(row + 1, column, mask) : V16{};
      char* const to = reinterpret_cast<char*>(output) + static_cast<ptrdiff_t>(column / width) * bytes +
                       (row / 2 * width + column % width) * 4;
      const VBits pairs = side_by_side(first, second);
      __builtin_memcpy(to, &pairs, sizeof pairs);
    }
}

void pack_rows(const Bf16* matrix, ptrdiff_t stride, size_t columns, size_t k, Bf16* panels, ptrdiff_t panel_bytes) {
  interleave<panel_columns>(matrix, stride, columns, k, panels, panel_bytes);
}

void pack_a(const Bf16* matrix, ptrdiff_t stride, size_t rows, size_t k, Bf16* blocks, ptrdiff_t block_bytes) {
  interleave<block_rows>(matrix, stride, rows, k, blocks, block_bytes);
}

// --- softmax of attention ---

// exp(x) for x <= 88 with a relative error below 1e-7; 0 for what f32 cannot hold. NaN stays NaN.
SCALETRAIN_INLINE V exponential_below(V x) {
  const V magic = splat(12582912.0F);
  const V n = fma(x, splat(1.44269504088896341F), magic) - magic;
  V r = fma(n, splat(-0.693359375F), x);
  r = fma(n, splat(2.12194440e-4F), r);
  V p = splat(1.3926183590e-03F);
  p = fma(p, r, splat(8.3631790528e-03F));
  p = fma(p, r, splat(4.1666554617e-02F));
  p = fma(p, r, splat(1.6666576990e-01F));
  p = fma(p, r, splat(0.5F));
  p = fma(p, r * r, r) + 1.0F;
  return _mm512_maskz_scalef_ps(0xffff, p, n);
}

SCALETRAIN_INLINE float sum_of_lanes(V v) {
  V s = v + V(_mm512_maskz_shuffle_f32x4(0xffff, v, v, 0x4e));
  s += V(_mm512_maskz_shuffle_f32x4(0xffff, s, s, 0xb1));
  s += V(_mm512_maskz_permute_ps(0xffff, s, 0x4e));
  s += V(_mm512_maskz_permute_ps(0xffff, s, 0xb1));
  return s[0];
}
SCALETRAIN_INLINE float largest_of_lanes(V v) {
  V m = maximum(v, _mm512_maskz_shuffle_f32x4(0xffff, v, v, 0x4e));
  m = maximum(m, _mm512_maskz_shuffle_f32x4(0xffff, m, m, 0xb1));
  m = maximum(m, _mm512_maskz_permute_ps(0xffff, m, 0x4e));
  m = maximum(m, _mm512_maskz_permute_ps(0xffff, m, 0xb1));
  return m[0];
}

// The lanes of columns [column, column + 16) that are in [first, last).
SCALETRAIN_INLINE __mmask16 lanes_between(size_t column, size_t first, size_t last) {
  const __mmask16 below = column < last ? lanes_below(last - column) : __mmask16{0};
  const __mmask16 before = column < first ? lanes_below(first - column) : __mmask16{0};
  return static_cast<__mmask16>(below & ~before);
}

SCALETRAIN_INLINE void clear(Bf16* row, size_t from, size_t to) {
  for (size_t i = from; i < to; i += lanes) store_rounded(row + i, V{}, lanes_below(to - i));
}

// whole(column) for the vectors that lie in [first, last), part(column, lanes) for those that do in part, in order.
template <class Whole, class Part>
SCALETRAIN_INLINE void for_seen(size_t first, size_t last, Whole whole, Part part) {
  size_t i = first / lanes * lanes;
  if (i < first && i < last) {
    part(i, lanes_between(i, first, last));
    i += lanes;
  }
  for (; i + lanes <= last; i += lanes) whole(i);
  if (i < last) part(i, lanes_between(i, first, last));
}

// The largest score that the query of a row sees; -infinity where it sees none.
SCALETRAIN_INLINE float largest_score(const float* scores, size_t first, size_t last) {
  V best = splat(-__builtin_inff());
  for_seen(
      first, last, [&](size_t i) { best = maximum(best, load(scores + i)); },
      [&](size_t i, __mmask16 seen) { best = maximum(best, V(_mm512_mask_loadu_ps(best, seen, scores + i))); });
  return largest_of_lanes(best);
}

// Scores become exp(score - shift), rounded; returns their sum before that.
SCALETRAIN_INLINE float exponentials(const float* scores, size_t first, size_t last, size_t padded, float shift,
                                     Bf16* p) {
  const V minus = splat(shift);
  V sum = {};
  clear(p, 0, first / lanes * lanes);
  for_seen(
      first, last,
      [&](size_t i) {
        const V e = exponential_below(load(scores + i) - minus);
        sum += e;
        store_rounded(p + i, e);
      },
      [&](size_t i, __mmask16 seen) {
        const V e = exponential_below(V(_mm512_maskz_loadu_ps(seen, scores + i)) - minus);
        const V kept = _mm512_maskz_mov_ps(seen, e);
        sum += kept;
        store_rounded(p + i, kept, lanes_below(padded - i));
      });
  clear(p, (last + lanes - 1) / lanes * lanes, padded);
  return sum_of_lanes(sum);
}

SCALETRAIN_INLINE void scale_row(float* row, size_t columns, float factor) {
  size_t c = 0;
  for (; c + lanes <= columns; c += lanes) store(row + c, load(row + c) * factor);
  for (; c < columns; ++c) row[c] *= factor;
}

// Some rows at a time: what the steps of one row wait for each other, those of others fill.
void softmax_forward(const ScoreBlock& block, const OnlineSoftmax& state, Rows output, size_t output_columns,
                     RowsOf<Bf16> probabilities) {
  const size_t padded = (block.columns + 1) / 2 * 2;
  for (size_t r0 = 0; r0 < block.rows; r0 += lanes) {
    const size_t rows = block.rows - r0 < lanes ? block.rows - r0 : lanes;
    const __mmask16 mask = lanes_below(rows);
    alignas(64) float maxima[lanes];
    alignas(64) float sums[lanes];
    const auto scores_of = [&](size_t r) { return block.scores + static_cast<ptrdiff_t>(r) * block.stride; };
    for (size_t r = r0; r < r0 + rows; ++r)
      maxima[r - r0] =
          largest_score(scores_of(r), static_cast<size_t>(block.first[r]), static_cast<size_t>(block.last[r]));
    const V before = _mm512_maskz_loadu_ps(mask, state.maximum + r0);
    const V found = _mm512_maskz_loadu_ps(mask, maxima);
    const V now = maximum(found, before);
    store(maxima, now);
    for (size_t r = r0; r < r0 + rows; ++r) {
      const auto first = static_cast<size_t>(block.first[r]);
      const auto last = static_cast<size_t>(block.last[r]);
      Bf16* const p = probabilities.data + static_cast<ptrdiff_t>(r) * probabilities.stride;
      sums[r - r0] = 0.0F;
      if (first < last)
        sums[r - r0] = exponentials(scores_of(r), first, last, padded, maxima[r - r0], p);
      else
        clear(p, 0, padded);
    }
    // Without a change the factor is 1, also where both are -infinity.
    const V factor = before == now ? splat(1.0F) : exponential_below(before - now);
    const V sum = V(_mm512_maskz_loadu_ps(mask, state.sum + r0)) * factor + V(_mm512_maskz_loadu_ps(mask, sums));
    _mm512_mask_storeu_ps(state.maximum + r0, mask, now);
    _mm512_mask_storeu_ps(state.sum + r0, mask, sum);
    if (!output.data) continue;
    for (size_t r = 0; r < rows; ++r)
      if (factor[r] != 1.0F)
        scale_row(output.data + static_cast<ptrdiff_t>(r0 + r) * output.stride, output_columns, factor[r]);
  }
}

void softmax_backward(const ScoreBlock& block, const float* log_sum_exp, const float* delta, float scale,
                      const float* d_probabilities, RowsOf<Bf16> probabilities, RowsOf<Bf16> d_scores) {
  const size_t padded = (block.columns + 1) / 2 * 2;
  for (size_t r = 0; r < block.rows; ++r) {
    const auto row = static_cast<ptrdiff_t>(r);
    const float* const scores = block.scores + row * block.stride;
    const float* const dp = d_probabilities + row * block.stride;
    Bf16* const p = probabilities.data + row * probabilities.stride;
    Bf16* const ds = d_scores.data + row * d_scores.stride;
    const auto first = static_cast<size_t>(block.first[r]);
    const auto last = static_cast<size_t>(block.last[r]);
    if (first >= last) {
      clear(p, 0, padded);
      clear(ds, 0, padded);
      continue;
    }
    const V shift = splat(log_sum_exp[r]);
    const V average = splat(delta[r]);
    clear(p, 0, first / lanes * lanes);
    clear(ds, 0, first / lanes * lanes);
    for_seen(
        first, last,
        [&](size_t i) {
          const V probability = exponential_below(load(scores + i) - shift);
          store_rounded(p + i, probability);
          store_rounded(ds + i, scale * probability * (load(dp + i) - average));
        },
        [&](size_t i, __mmask16 seen) {
          const V probability = exponential_below(V(_mm512_maskz_loadu_ps(seen, scores + i)) - shift);
          const V gradient = scale * probability * (V(_mm512_maskz_loadu_ps(seen, dp + i)) - average);
          store_rounded(p + i, _mm512_maskz_mov_ps(seen, probability), lanes_below(padded - i));
          store_rounded(ds + i, _mm512_maskz_mov_ps(seen, gradient), lanes_below(padded - i));
        });
    clear(p, (last + lanes - 1) / lanes * lanes, padded);
    clear(ds, (last + lanes - 1) / lanes * lanes, padded);
  }
}

void row_dots(RowsOf<const Bf16> a, RowsOf<const Bf16> b, size_t rows, size_t length, float* output) {
  for (size_t r = 0; r < rows; ++r) {
    const Bf16* const left = a.data + static_cast<ptrdiff_t>(r) * a.stride;
    const Bf16* const right = b.data + static_cast<ptrdiff_t>(r) * b.stride;
    V sum = {};
    for (size_t i = 0; i < length; i += lanes) {
      const __mmask16 mask = lanes_below(length - i);
      sum = fma(load_masked(left + i, mask), load_masked(right + i, mask), sum);
    }
    output[r] = sum_of_lanes(sum);
  }
}

}  // namespace

const Bf16Kernels& bf16_kernels_avx512() {
  static constexpr Bf16Kernels table = {.name = "avx512_bf16",
                                        .title = "AVX-512 bf16",
                                        .product = product,
                                        .pack_columns = pack_columns,
                                        .pack_rows = pack_rows,
                                        .packs_rows = 0,
                                        .pack_a = pack_a,
                                        .softmax_forward = softmax_forward,
                                        .softmax_backward = softmax_backward,
                                        .row_dots = row_dots};
  return table;
}

}  // namespace scaletrain::cpu
