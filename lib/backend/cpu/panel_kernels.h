// Products of matrices that are packed as panels, tables of functions of one element type, as in kernels.h, whose rule
// about headers holds here too: bf16 by instructions that multiply pairs of elements that follow each other in k and
// add both products to an f32 sum, VDPBF16PS (AVX-512 bf16) or, tile by tile, TDPBF16PS (AMX), and f32 by multiply-adds
// of AVX-512 or of AVX2.
//
// Layouts of packed operands, in words of 4 bytes (a pair [k, k+1] of bf16, or one element of f32), zeros where k or
// the columns end:
//   B (the columns of the result): panels of 64 columns, each [words][64]; AVX2's have 16.
//   A (its rows): blocks of 48 rows, each [words][48], 8 groups of [words][6] where packs_groups, or 3 groups of
//   [words / 16][16][16] where packs_tiles. A matrix whose rows are whole words is read as it lies, too.
// The sum over k of an element of the result is made in order, word after word (AMX: 16 after 16), whatever the tile
// that it is in and however k is cut (AMX: at multiples of 32): its bits depend on nothing else. AVX2 sums what it is
// given of k from zero, and adds what there was behind it: there its bits depend on how k is cut, too.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "backend/cpu/kernels.h"
#include "tensor/halves.h"

namespace scaletrain::cpu {

constexpr ptrdiff_t panel_columns = 64;  // of bf16, and the most
constexpr ptrdiff_t panel_block_rows = 48;
constexpr ptrdiff_t panel_group_rows = 6;
constexpr ptrdiff_t panel_tile_rows = 16;
constexpr ptrdiff_t panel_tile_words = 16;

// A tile of rows × columns: sums = (begins ? 0 : sums) + a · b, times alpha. Then, if there is an output, that is sums
// + bias + addend, rounded, and what the sums hold afterwards is undefined.
template <class S>
struct PanelTile {
  const void* a = nullptr;
  ptrdiff_t a_block_bytes = 0;  // between blocks of 48 rows
  ptrdiff_t a_row_bytes = 0;
  ptrdiff_t a_word_bytes = 0;
  ptrdiff_t a_group_bytes = 0;  // between groups of rows of a block; 0: as far as the rows
  ptrdiff_t a_tile_bytes = 0;   // between 16 words of a row and the next 16; 0: as far as the words
  const S* b = nullptr;         // packed
  ptrdiff_t b_panel_bytes = 0;  // between panels
  size_t rows = 0;
  size_t columns = 0;
  size_t words = 0;
  int begins = 0;
  float alpha = 1.0F;
  float* sums = nullptr;  // may be null with `begins` and an output
  ptrdiff_t sums_stride = 0;
  S* output = nullptr;  // or null
  ptrdiff_t output_stride = 0;
  const S* bias = nullptr;    // or null, one per column
  const S* addend = nullptr;  // or null; may be the output
  ptrdiff_t addend_stride = 0;
};

template <class S>
struct PanelKernels {
  const char* name;   // as an instruction set is asked for
  const char* title;  // for people
  ptrdiff_t columns;  // of a panel of B
  void (*product)(const PanelTile<S>& tile);
  // B from a matrix that lies as [columns][k] (pack_columns) or [k][columns] (pack_rows).
  void (*pack_columns)(const S* matrix, ptrdiff_t stride, size_t columns, size_t k, S* panels, ptrdiff_t panel_bytes);
  void (*pack_rows)(const S* matrix, ptrdiff_t stride, size_t columns, size_t k, S* panels, ptrdiff_t panel_bytes);
  // A from a matrix that lies as [k][rows].
  int packs_groups;
  int packs_tiles;
  void (*pack_a)(const S* matrix, ptrdiff_t stride, size_t rows, size_t k, S* blocks, ptrdiff_t block_bytes);
  // The same from one that lies as [rows][k]; null where that gains nothing over reading it as it lies.
  void (*pack_a_rows)(const S* matrix, ptrdiff_t stride, size_t rows, size_t k, S* blocks, ptrdiff_t block_bytes);

  // The softmax of attention as in Kernels, with what is multiplied next rounded to S: rows of `stride` elements with
  // zeros up to whole words of columns. Scores are only read, but their memory may be that of what is written.
  void (*softmax_forward)(const ScoreBlock& block, const OnlineSoftmax& state, Rows output, size_t output_columns,
                          RowsOf<S> probabilities);
  // d_scores = scale · P · (dP - delta).
  void (*softmax_backward)(const ScoreBlock& block, const float* log_sum_exp, const float* delta, float scale,
                           const float* d_probabilities, RowsOf<S> probabilities, RowsOf<S> d_scores);
  // output[i] = a row i · b row i.
  void (*row_dots)(RowsOf<const S> a, RowsOf<const S> b, size_t rows, size_t length, float* output);
};

// What AMX does in a way of its own, with rows packed as tiles; for the rest it takes what AVX-512 bf16 has.
struct Bf16Tiles {
  void (*product)(const PanelTile<Bf16>& tile);
  void (*pack_a)(const Bf16* matrix, ptrdiff_t stride, size_t rows, size_t k, Bf16* blocks, ptrdiff_t block_bytes);
  void (*pack_a_rows)(const Bf16* matrix, ptrdiff_t stride, size_t rows, size_t k, Bf16* blocks, ptrdiff_t block_bytes);
};

extern const PanelKernels<Bf16> bf16_panels_avx512;
extern const PanelKernels<float> f32_panels_avx512;
extern const PanelKernels<float> f32_panels_avx2;
extern const Bf16Tiles bf16_tiles_amx;

}  // namespace scaletrain::cpu
