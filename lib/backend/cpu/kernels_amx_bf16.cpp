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
  const char* a[2];  // of each row tile; the same where there is one
  const char* b;     // the panel's first pair at the square's first column
  float* sums;
  Bf16* output;
  const Bf16* bias;
  const Bf16* addend;
  size_t rows;
  size_t columns;
};

// b: of the first tile column; those of the second follow. _tile_... take numbers as literals.
template <bool two_rows, bool two_columns>
SCALETRAIN_INLINE void multiply_pairs(const char* a0, const char* a1, ptrdiff_t a_stride, const char* b,
                                      ptrdiff_t b_stride) {
  _tile_loadd(6, b, b_stride);
  if (two_columns) _tile_loadd(7, b + tile_row_bytes, b_stride);
  _tile_loadd(4, a0, a_stride);
  if (two_rows) _tile_loadd(5, a1, a_stride);
  _tile_dpbf16ps(0, 4, 6);
  if (two_columns) _tile_dpbf16ps(1, 4, 7);
  if (two_rows) _tile_dpbf16ps(2, 5, 6);
  if (two_rows && two_columns) _tile_dpbf16ps(3, 5, 7);
}

// The last pairs of k, fewer than a tile's, as tiles with zeros behind them: a panel ends with its last pair, and a row
// of a may be followed by anything.
struct LastPairs {
  alignas(64) char a[2 * tile_rows * tile_row_bytes];
  alignas(64) char b[tile_pairs * 2 * tile_row_bytes];
};
SCALETRAIN_INLINE void copy_last(const PanelTile<Bf16>& t, const Square& s, size_t first_pair, LastPairs& last) {
  const size_t left = t.words - first_pair;
  __builtin_memset(&last, 0, sizeof last);
  for (size_t r = 0; r < s.rows; ++r) {
    const char* const row = s.a[r / tile_rows] + static_cast<ptrdiff_t>(r % tile_rows) * t.a_row_bytes;
    __builtin_memcpy(last.a + r * tile_row_bytes, row + first_pair * 4, left * 4);
  }
  for (size_t pair = 0; pair < left; ++pair)
    __builtin_memcpy(last.b + pair * 2 * tile_row_bytes,
                     s.b + static_cast<ptrdiff_t>(first_pair + pair) * panel_pair_bytes, 2 * tile_row_bytes);
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

template <bool two_rows, bool two_columns>
SCALETRAIN_INLINE void load_sums(const PanelTile<Bf16>& t, const Square& s, Stage& stage) {
  for (size_t r = 0; r < s.rows; ++r)
    for (size_t c = 0; c < stage_columns; c += lanes)
      store(stage.row(r) + c,
            _mm512_maskz_loadu_ps(lanes_left(c, s.columns), s.sums + static_cast<ptrdiff_t>(r) * t.sums_stride + c));
  memory_settles();
  constexpr ptrdiff_t stride = stage_columns * sizeof(float);
  _tile_loadd(0, stage.row(0), stride);
  if (two_columns) _tile_loadd(1, stage.row(0) + tile_columns, stride);
  if (two_rows) _tile_loadd(2, stage.row(tile_rows), stride);
  if (two_rows && two_columns) _tile_loadd(3, stage.row(tile_rows) + tile_columns, stride);
}

template <bool two_rows, bool two_columns>
SCALETRAIN_INLINE void finish_square(const PanelTile<Bf16>& t, const Square& s, Stage& stage) {
  constexpr ptrdiff_t stride = stage_columns * sizeof(float);
  _tile_stored(0, stage.row(0), stride);
  if (two_columns) _tile_stored(1, stage.row(0) + tile_columns, stride);
  if (two_rows) _tile_stored(2, stage.row(tile_rows), stride);
  if (two_rows && two_columns) _tile_stored(3, stage.row(tile_rows) + tile_columns, stride);
  memory_settles();
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
  if (t.begins) {
    _tile_zero(0);
    if (two_columns) _tile_zero(1);
    if (two_rows) _tile_zero(2);
    if (two_rows && two_columns) _tile_zero(3);
  } else {
    load_sums<two_rows, two_columns>(t, s, stage);
  }
  size_t pair = 0;
  for (; pair + tile_pairs <= t.words; pair += tile_pairs)
    multiply_pairs<two_rows, two_columns>(s.a[0] + pair * 4, s.a[1] + pair * 4, t.a_row_bytes,
                                          s.b + static_cast<ptrdiff_t>(pair) * panel_pair_bytes, panel_pair_bytes);
  if (pair < t.words) {
    LastPairs last;
    copy_last(t, s, pair, last);
    multiply_pairs<two_rows, two_columns>(last.a, last.a + tile_rows * tile_row_bytes, tile_row_bytes, last.b,
                                          2 * tile_row_bytes);
  }
  finish_square<two_rows, two_columns>(t, s, stage);
}

void square_of(const PanelTile<Bf16>& t, size_t row, size_t column) {
  const auto at = static_cast<ptrdiff_t>(row);
  const auto offset = static_cast<ptrdiff_t>(column);
  const auto a_at = [&](size_t r) {
    return static_cast<const char*>(t.a) + static_cast<ptrdiff_t>(r / panel_block_rows) * t.a_block_bytes +
           static_cast<ptrdiff_t>(r % panel_block_rows) * t.a_row_bytes;
  };
  const size_t rows = t.rows - row < 2 * tile_rows ? t.rows - row : 2 * tile_rows;
  const size_t columns = t.columns - column < stage_columns ? t.columns - column : stage_columns;
  const Square square = {.a = {a_at(row), a_at(rows > tile_rows ? row + tile_rows : row)},
                         .b = reinterpret_cast<const char*>(t.b) +
                              static_cast<ptrdiff_t>(column / panel_columns) * t.b_panel_bytes +
                              column % panel_columns * 4,
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

// Column by column of squares: b's part of one, 32 columns, stays in the first-level cache while a passes by.
void whole_k(const PanelTile<Bf16>& t) {
  const size_t full_rows = t.rows / (2 * tile_rows) * (2 * tile_rows);
  if (full_rows > 0) {
    shape_tiles(tile_rows, tile_rows);
    for (size_t column = 0; column < t.columns; column += stage_columns)
      for (size_t row = 0; row < full_rows; row += 2 * tile_rows) square_of(t, row, column);
  }
  if (full_rows < t.rows) {
    const size_t left = t.rows - full_rows;
    shape_tiles(left < tile_rows ? left : tile_rows, left > tile_rows ? left - tile_rows : tile_rows);
    for (size_t column = 0; column < t.columns; column += stage_columns) square_of(t, full_rows, column);
  }
}

// As many pairs of 32 columns as fill two thirds of a first-level cache of 48 KiB.
constexpr size_t most_pairs = 256;
static_assert(most_pairs % tile_pairs == 0);

void product(const PanelTile<Bf16>& t) {
  const size_t step = t.sums ? most_pairs : t.words;
  size_t pair = 0;
  do {  // once at least: an empty sum is what there was
    const size_t count = t.words - pair < step ? t.words - pair : step;
    const bool is_last = pair + count == t.words;
    PanelTile<Bf16> part = t;
    part.a = static_cast<const char*>(t.a) + pair * 4;
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

// Blocks of rows as they are multiplied: each [48][pairs].
void pack_a(const Bf16* matrix, ptrdiff_t stride, size_t rows, size_t k, Bf16* blocks, ptrdiff_t block_bytes) {
  const size_t pairs = (k + 1) / 2;
  const auto load_row = [=](size_t at, size_t row) {
    const __mmask16 mask = at < k ? lanes_left(row, rows) : __mmask16{0};
    const Bf16* const from = matrix + static_cast<ptrdiff_t>(at) * stride + static_cast<ptrdiff_t>(row);
    return reinterpret_cast<V16>(_mm256_maskz_loadu_epi16(mask, from));
  };
  for (size_t row = 0; row < rows; row += lanes) {
    char* const block = reinterpret_cast<char*>(blocks) + static_cast<ptrdiff_t>(row / panel_block_rows) * block_bytes;
    for (size_t pair = 0; pair < pairs; pair += lanes) {
      __m512i columns[lanes];
      for (size_t i = 0; i < lanes; ++i)
        columns[i] =
            reinterpret_cast<__m512i>(side_by_side(load_row(2 * (pair + i), row), load_row(2 * (pair + i) + 1, row)));
      transpose(columns);
      const __mmask16 mask = lanes_left(pair, pairs);
      for (size_t r = 0; r < lanes; ++r)
        _mm512_mask_storeu_epi32(block + ((row % panel_block_rows + r) * pairs + pair) * 4, mask, columns[r]);
    }
  }
}

}  // namespace

constinit const Bf16Tiles bf16_tiles_amx = {.product = product, .pack_a = pack_a};

}  // namespace scaletrain::cpu
