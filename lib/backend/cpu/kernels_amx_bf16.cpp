// For processors with AMX (Intel since 2023): products of bf16 by TDPBF16PS on tiles of 16 rows and 64 bytes. What else
// a table has is that of AVX-512 bf16. See panel_kernels.h for the layouts, and Intel's Software Developer's Manual for
// the instruction.
//
// The sum over k of an element of the result is made of partial sums over 32 elements of k each, counted from the
// beginning of the tile's k, which the instruction adds to what there is: its bits depend neither on the tile that it
// is in nor on how k is cut, as long as that is at multiples of 32.
#define SCALETRAIN_LANES 16
#include <immintrin.h>

#include "backend/cpu/panel_kernels.h"

namespace scaletrain::cpu {

namespace {

#include "backend/cpu/simd.inc"
#include "backend/cpu/simd_bf16.inc"
#include "backend/cpu/simd_words.inc"

constexpr size_t tile_rows = 16;
constexpr size_t tile_columns = 16;
constexpr size_t tile_pairs = 16;  // of k
constexpr ptrdiff_t tile_row_bytes = 64;
constexpr ptrdiff_t panel_pair_bytes = panel_columns * 4;
static_assert(panel_block_rows % tile_rows == 0 && panel_columns % (2 * tile_columns) == 0);

// Tiles by number: 0 to 3 are sums, of two row tiles by two column tiles; 4 and 5 hold rows of a, 6 and 7 columns of b.
struct TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileShapes) == 64);

// Compilers' headers do not say what memory the instructions on tiles read and write: what was stored before is in
// memory behind this, what is read after it is read there.
SCALETRAIN_INLINE void memory_settles() {
  __asm__ volatile("" ::: "memory");
}

// Of sums and operands whose two row tiles have so many rows, at least one each.
void shape_tiles(size_t first_rows, size_t second_rows) {
  TileShapes shapes;
  for (int tile = 0; tile < 8; ++tile) {
    shapes.row_bytes[tile] = tile_row_bytes;
    shapes.rows[tile] = tile_pairs;
  }
  const auto first = static_cast<uint8_t>(first_rows);
  const auto second = static_cast<uint8_t>(second_rows);
  shapes.rows[0] = shapes.rows[1] = shapes.rows[4] = first;
  shapes.rows[2] = shapes.rows[3] = shapes.rows[5] = second;
  memory_settles();
  _tile_loadconfig(&shapes);
}

// Two row tiles by two column tiles of the result, or one of either.
struct Square {
  const char* a[2];   // of each row tile; the same where there is one
  ptrdiff_t a_step;   // from one tile of k to the next
  const char* b;      // the panel's first pair at the square's first column
  const char* ahead;  // what is multiplied next lies here: a share of it for each tile of k, or null
  float* sums;
  Bf16* output;
  const Bf16* bias;
  const Bf16* addend;
  size_t rows;
  size_t columns;
};

// So many lines of a panel are fetched ahead while a tile of k is multiplied: all of its part, while 256 rows pass by
// the one before. With fewer rows than half of that it is not worth beginning.
constexpr ptrdiff_t lines_ahead = 4;
constexpr ptrdiff_t line_bytes = 64;
constexpr size_t fewest_rows_ahead = 128;

// b: of the first tile column; those of the second follow. _tile_... take numbers as literals. Loads stand between
// products, so that either has what the other leaves of the processor.
template <bool two_rows, bool two_columns>
SCALETRAIN_INLINE void multiply_pairs(const char* a0, const char* a1, ptrdiff_t a_stride, const char* b,
                                      ptrdiff_t b_stride, const char* ahead) {
  _tile_loadd(6, b, b_stride);
  _tile_loadd(4, a0, a_stride);
  if (two_columns) _tile_loadd(7, b + tile_row_bytes, b_stride);
  _tile_dpbf16ps(0, 4, 6);
  if (two_rows) _tile_loadd(5, a1, a_stride);
  if (two_columns) _tile_dpbf16ps(1, 4, 7);
  if (ahead)
    for (ptrdiff_t line = 0; line < lines_ahead; ++line) _mm_prefetch(ahead + line * line_bytes, _MM_HINT_T1);
  if (two_rows) _tile_dpbf16ps(2, 5, 6);
  if (two_rows && two_columns) _tile_dpbf16ps(3, 5, 7);
}

// The last pairs of k, fewer than a tile's, as tiles with zeros behind them: a panel ends with its last pair, and a row
// of a may be followed by anything.
struct LastPairs {
  alignas(64) char a[2 * tile_rows * tile_row_bytes];
  alignas(64) char b[tile_pairs * 2 * tile_row_bytes];
};
// first_tile: of k, the last one.
SCALETRAIN_INLINE void copy_last(const PanelTile<Bf16>& t, const Square& s, size_t first_tile, LastPairs& last) {
  const size_t left = t.words - first_tile * tile_pairs;
  __builtin_memset(&last, 0, sizeof last);
  for (size_t r = 0; r < s.rows; ++r) {
    const char* const row = s.a[r / tile_rows] + static_cast<ptrdiff_t>(first_tile) * s.a_step +
                            static_cast<ptrdiff_t>(r % tile_rows) * t.a_row_bytes;
    __builtin_memcpy(last.a + r * tile_row_bytes, row, left * 4);
  }
  for (size_t pair = 0; pair < left; ++pair)
    __builtin_memcpy(last.b + pair * 2 * tile_row_bytes,
                     s.b + static_cast<ptrdiff_t>(first_tile * tile_pairs + pair) * panel_pair_bytes,
                     2 * tile_row_bytes);
  memory_settles();
}

// Sums of 32 x 32 elements on their way between tiles and memory, where vectors reach them.
constexpr size_t stage_columns = 2 * tile_columns;
struct Stage {
  alignas(64) float values[2 * tile_rows * stage_columns];
  float* row(size_t r) { return values + r * stage_columns; }
};

SCALETRAIN_INLINE __mmask16 lanes_left(size_t column, size_t columns) {
  return column < columns ? lanes_below(columns - column) : __mmask16{0};
}

// stride: in elements.
template <bool two_rows, bool two_columns>
SCALETRAIN_INLINE void load_tiles(const float* sums, ptrdiff_t stride) {
  const ptrdiff_t bytes = stride * static_cast<ptrdiff_t>(sizeof(float));
  const float* const second = sums + static_cast<ptrdiff_t>(tile_rows) * stride;
  _tile_loadd(0, sums, bytes);
  if (two_columns) _tile_loadd(1, sums + tile_columns, bytes);
  if (two_rows) _tile_loadd(2, second, bytes);
  if (two_rows && two_columns) _tile_loadd(3, second + tile_columns, bytes);
}
template <bool two_rows, bool two_columns>
SCALETRAIN_INLINE void store_tiles(float* sums, ptrdiff_t stride) {
  const ptrdiff_t bytes = stride * static_cast<ptrdiff_t>(sizeof(float));
  float* const second = sums + static_cast<ptrdiff_t>(tile_rows) * stride;
  _tile_stored(0, sums, bytes);
  if (two_columns) _tile_stored(1, sums + tile_columns, bytes);
  if (two_rows) _tile_stored(2, second, bytes);
  if (two_rows && two_columns) _tile_stored(3, second + tile_columns, bytes);
}

template <bool two_rows, bool two_columns>
SCALETRAIN_INLINE void load_sums(const PanelTile<Bf16>& t, const Square& s, bool is_whole, Stage& stage) {
  if (is_whole) {
    memory_settles();
    load_tiles<two_rows, two_columns>(s.sums, t.sums_stride);
    return;
  }
  for (size_t r = 0; r < s.rows; ++r)
    for (size_t c = 0; c < stage_columns; c += lanes)
      store(stage.row(r) + c,
            _mm512_maskz_loadu_ps(lanes_left(c, s.columns), s.sums + static_cast<ptrdiff_t>(r) * t.sums_stride + c));
  memory_settles();
  load_tiles<two_rows, two_columns>(stage.row(0), stage_columns);
}

SCALETRAIN_INLINE void load_pair(const Bf16* values, V& low, V& high) {
  low = load_masked(values, 0xffff);
  high = load_masked(values + lanes, 0xffff);
}

// Rows of 32 elements of an output, rounded as store_rounded does.
template <bool has_addend>
SCALETRAIN_INLINE void write_rows(const PanelTile<Bf16>& t, const Square& s, const Stage& stage) {
  V bias_low = {};
  V bias_high = {};
  if (s.bias) load_pair(s.bias, bias_low, bias_high);
  const V alpha = splat(t.alpha);
  const Bf16* addend = s.addend;
  Bf16* output = s.output;
  const float* sums = stage.values;
  const ptrdiff_t addend_stride = t.addend_stride;
  const ptrdiff_t output_stride = t.output_stride;
  for (size_t r = 0; r < s.rows; ++r) {
    V low = load(sums) * alpha + bias_low;
    V high = load(sums + lanes) * alpha + bias_high;
    if (has_addend) {
      V more_low;
      V more_high;
      load_pair(addend, more_low, more_high);
      low += more_low;
      high += more_high;
      addend += addend_stride;
    }
    _mm512_storeu_si512(output, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
    output += output_stride;
    sums += stage_columns;
  }
}

template <bool two_rows, bool two_columns>
SCALETRAIN_INLINE void finish_square(const PanelTile<Bf16>& t, const Square& s, bool is_whole, Stage& stage) {
  if (is_whole && !s.output && t.alpha == 1.0F) {
    store_tiles<two_rows, two_columns>(s.sums, t.sums_stride);
    memory_settles();
    return;
  }
  store_tiles<two_rows, two_columns>(stage.row(0), stage_columns);
  memory_settles();
  if (is_whole && two_columns && !s.output) {
    const V alpha = splat(t.alpha);
    const float* from = stage.values;
    float* to = s.sums;
    for (size_t r = 0; r < s.rows; ++r, from += stage_columns, to += t.sums_stride) {
      store(to, load(from) * alpha);
      store(to + lanes, load(from + lanes) * alpha);
    }
    return;
  }
  if (s.output && s.columns == stage_columns) {
    s.addend ? write_rows<true>(t, s, stage) : write_rows<false>(t, s, stage);
    return;
  }
  for (size_t r = 0; r < s.rows; ++r)
    for (size_t c = 0; c < s.columns; c += lanes) {
      const auto row = static_cast<ptrdiff_t>(r);
      const __mmask16 mask = lanes_left(c, s.columns);
      V sum = load(stage.row(r) + c) * t.alpha;
      if (!s.output) {
        _mm512_mask_storeu_ps(s.sums + row * t.sums_stride + c, mask, sum);
        continue;
      }
      if (s.bias) sum += load_masked(s.bias + c, mask);
      if (s.addend) sum += load_masked(s.addend + row * t.addend_stride + c, mask);
      store_rounded(s.output + row * t.output_stride + c, sum, mask);
    }
}

template <bool two_rows, bool two_columns>
void square_product(const PanelTile<Bf16>& t, const Square& s) {
  Stage stage;
  // Tiles have the rows of the square; their columns are all 16.
  const bool is_whole = s.columns == (two_columns ? 2 : 1) * tile_columns;
  if (t.begins) {
    _tile_zero(0);
    if (two_columns) _tile_zero(1);
    if (two_rows) _tile_zero(2);
    if (two_rows && two_columns) _tile_zero(3);
  } else {
    load_sums<two_rows, two_columns>(t, s, is_whole, stage);
  }
  const char* a0 = s.a[0];
  const char* a1 = s.a[1];
  const char* b = s.b;
  const char* ahead = s.ahead;
  const size_t whole_tiles = t.words / tile_pairs;
  for (size_t i = 0; i < whole_tiles; ++i) {
    multiply_pairs<two_rows, two_columns>(a0, a1, t.a_row_bytes, b, panel_pair_bytes, ahead);
    a0 += s.a_step;
    a1 += s.a_step;
    b += static_cast<ptrdiff_t>(tile_pairs) * panel_pair_bytes;
    if (ahead) ahead += lines_ahead * line_bytes;
  }
  if (whole_tiles * tile_pairs < t.words) {
    LastPairs last;
    copy_last(t, s, whole_tiles, last);
    multiply_pairs<two_rows, two_columns>(last.a, last.a + tile_rows * tile_row_bytes, tile_row_bytes, last.b,
                                          2 * tile_row_bytes, nullptr);
  }
  finish_square<two_rows, two_columns>(t, s, is_whole, stage);
}

// ahead: see Square.
void square_of(const PanelTile<Bf16>& t, size_t row, size_t column, const char* ahead) {
  const auto at = static_cast<ptrdiff_t>(row);
  const auto offset = static_cast<ptrdiff_t>(column);
  const ptrdiff_t group_bytes = t.a_group_bytes ? t.a_group_bytes : panel_tile_rows * t.a_row_bytes;
  const auto a_at = [&](size_t r) {
    return static_cast<const char*>(t.a) + static_cast<ptrdiff_t>(r / panel_block_rows) * t.a_block_bytes +
           static_cast<ptrdiff_t>(r % panel_block_rows / tile_rows) * group_bytes;
  };
  const size_t rows = t.rows - row < 2 * tile_rows ? t.rows - row : 2 * tile_rows;
  const size_t columns = t.columns - column < stage_columns ? t.columns - column : stage_columns;
  const Square square = {.a = {a_at(row), a_at(rows > tile_rows ? row + tile_rows : row)},
                         .a_step = t.a_tile_bytes ? t.a_tile_bytes : tile_row_bytes,
                         .b = reinterpret_cast<const char*>(t.b) +
                              static_cast<ptrdiff_t>(column / panel_columns) * t.b_panel_bytes +
                              column % panel_columns * 4,
                         .ahead = ahead,
                         .sums = t.sums ? t.sums + at * t.sums_stride + offset : nullptr,
                         .output = t.output ? t.output + at * t.output_stride + offset : nullptr,
                         .bias = t.bias ? t.bias + offset : nullptr,
                         .addend = t.addend ? t.addend + at * t.addend_stride + offset : nullptr,
                         .rows = rows,
                         .columns = columns};
  const bool two_columns = columns > tile_columns;
  if (rows > tile_rows)
    two_columns ? square_product<true, true>(t, square) : square_product<true, false>(t, square);
  else
    two_columns ? square_product<false, true>(t, square) : square_product<false, false>(t, square);
}

// Panel by panel: its part of b stays in the first-level cache while a passes by, each of its rows for two squares.
// Meanwhile the next panel's part comes closer; after the last panel, that of the first's next words.
void whole_k(const PanelTile<Bf16>& t) {
  const size_t full_rows = t.rows / (2 * tile_rows) * (2 * tile_rows);
  if (full_rows > 0) {
    shape_tiles(tile_rows, tile_rows);
    const auto* const b = reinterpret_cast<const char*>(t.b);
    const ptrdiff_t fetched = static_cast<ptrdiff_t>(t.words / tile_pairs) * lines_ahead * line_bytes;
    for (size_t panel = 0; panel < t.columns; panel += panel_columns) {
      const char* ahead = nullptr;
      if (full_rows >= fewest_rows_ahead)
        ahead = panel + panel_columns < t.columns
                    ? b + static_cast<ptrdiff_t>(panel / panel_columns + 1) * t.b_panel_bytes
                    : b + static_cast<ptrdiff_t>(t.words) * panel_pair_bytes;
      const size_t end = t.columns - panel < panel_columns ? t.columns : panel + panel_columns;
      for (size_t row = 0; row < full_rows; row += 2 * tile_rows)
        for (size_t column = panel; column < end; column += stage_columns) {
          square_of(t, row, column, ahead);
          if (ahead) ahead += fetched;
        }
    }
  }
  if (full_rows < t.rows) {
    const size_t left = t.rows - full_rows;
    shape_tiles(left < tile_rows ? left : tile_rows, left > tile_rows ? left - tile_rows : tile_rows);
    for (size_t column = 0; column < t.columns; column += stage_columns) square_of(t, full_rows, column, nullptr);
  }
}

// A panel's part takes two thirds of a first-level cache of 48 KiB, that of 32 rows of a the rest.
constexpr size_t most_pairs = 128;
static_assert(most_pairs % tile_pairs == 0);

void product(const PanelTile<Bf16>& t) {
  const size_t step = t.sums ? most_pairs : t.words;
  const ptrdiff_t a_tile_bytes = t.a_tile_bytes ? t.a_tile_bytes : tile_row_bytes;
  size_t pair = 0;
  do {  // once at least: an empty sum is what there was
    const size_t count = t.words - pair < step ? t.words - pair : step;
    const bool is_last = pair + count == t.words;
    PanelTile<Bf16> part = t;
    part.a = static_cast<const char*>(t.a) + static_cast<ptrdiff_t>(pair / tile_pairs) * a_tile_bytes;
    part.b = reinterpret_cast<const Bf16*>(reinterpret_cast<const char*>(t.b) +
                                           static_cast<ptrdiff_t>(pair) * panel_pair_bytes);
    part.words = count;
    part.begins = pair == 0 ? t.begins : 0;
    if (!is_last) {
      part.alpha = 1.0F;
      part.output = nullptr;
    }
    whole_k(part);
    pair += step;
  } while (pair < t.words);
  _tile_release();
}

// --- packing of a: row tiles of 16 rows, each [tiles of k][16][16 pairs] ---

SCALETRAIN_INLINE char* row_tile_at(Bf16* blocks, size_t row, size_t pairs, ptrdiff_t block_bytes) {
  const size_t tiles = (pairs + tile_pairs - 1) / tile_pairs;
  return reinterpret_cast<char*>(blocks) + static_cast<ptrdiff_t>(row / panel_block_rows) * block_bytes +
         static_cast<ptrdiff_t>(row % panel_block_rows / tile_rows * tiles) * tile_rows * tile_row_bytes;
}

// The first 16 words of 16 rows of a as a tile, from a matrix that lies as [k][rows]. whole: all of them are there.
template <bool whole>
SCALETRAIN_INLINE void turn_tile(const Bf16* matrix, ptrdiff_t stride, size_t rows, size_t k, char* tile) {
  const auto load_row = [=](size_t at) {
    const Bf16* const from = matrix + static_cast<ptrdiff_t>(at) * stride;
    if (whole) return reinterpret_cast<V16>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    return reinterpret_cast<V16>(_mm256_maskz_loadu_epi16(at < k ? lanes_left(0, rows) : __mmask16{0}, from));
  };
  __m512i columns[lanes];
#pragma GCC unroll 16
  for (size_t i = 0; i < lanes; ++i)
    columns[i] = reinterpret_cast<__m512i>(side_by_side(load_row(2 * i), load_row(2 * i + 1)));
  transpose(columns);
#pragma GCC unroll 16
  for (size_t r = 0; r < tile_rows; ++r) _mm512_storeu_si512(tile + r * tile_row_bytes, columns[r]);
}

// 32 rows of the matrix at a time: the whole of their part of it. The next 32 are fetched meanwhile, since they are far
// apart, and processors do not see the pattern by themselves. A line is two tiles wide.
void pack_a(const Bf16* matrix, ptrdiff_t stride, size_t rows, size_t k, Bf16* blocks, ptrdiff_t block_bytes) {
  const size_t pairs = (k + 1) / 2;
  constexpr size_t tile_k = 2 * tile_pairs;
  for (size_t at = 0; at < k; at += tile_k)
    for (size_t row = 0; row < rows; row += tile_rows) {
      char* const tile = row_tile_at(blocks, row, pairs, block_bytes) + at / tile_k * tile_rows * tile_row_bytes;
      const Bf16* const from = matrix + static_cast<ptrdiff_t>(at) * stride + static_cast<ptrdiff_t>(row);
      if (row % (2 * tile_rows) == 0)
        for (size_t i = 0; i < tile_k; ++i) __builtin_prefetch(from + static_cast<ptrdiff_t>(tile_k + i) * stride);
      if (at + tile_k <= k && row + tile_rows <= rows)
        turn_tile<true>(from, stride, tile_rows, tile_k, tile);
      else
        turn_tile<false>(from, stride, rows - row, k - at, tile);
    }
}

void pack_a_rows(const Bf16* matrix, ptrdiff_t stride, size_t rows, size_t k, Bf16* blocks, ptrdiff_t block_bytes) {
  const size_t pairs = (k + 1) / 2;
  constexpr size_t tile_elements = 2 * tile_pairs;
  for (size_t row = 0; row < rows; ++row) {
    char* to = row_tile_at(blocks, row, pairs, block_bytes) + row % tile_rows * tile_row_bytes;
    const Bf16* const from = matrix + static_cast<ptrdiff_t>(row) * stride;
    for (size_t i = 0; i < k; i += tile_elements, to += tile_rows * tile_row_bytes) {
      const __mmask32 mask = k - i >= tile_elements ? ~__mmask32{0} : (__mmask32{1} << (k - i)) - 1;
      _mm512_storeu_si512(to, _mm512_maskz_loadu_epi16(mask, from + i));
    }
  }
}

}  // namespace

constinit const Bf16Tiles bf16_tiles_amx = {.product = product, .pack_a = pack_a, .pack_a_rows = pack_a_rows};

}  // namespace scaletrain::cpu
