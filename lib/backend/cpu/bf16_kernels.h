// Products of bf16 matrices by instructions that multiply pairs of elements that follow each other in k and add both
// products to an f32 sum, VDPBF16PS (AVX-512 bf16) or, tile by tile, TDPBF16PS (AMX): tables of functions, as in
// kernels.h, whose rule about headers holds here too.
//
// Layouts of packed operands, in pairs [k, k+1] of 4 bytes, zeros where k or the columns end:
//   B (the columns of the result): panels of 64 columns, each [pairs][64].
//   A (its rows): blocks of 48 rows, each [pairs][48], or [48][pairs] where packs_rows. A matrix whose rows have an
//   even number of elements in k is read as it lies.
// The sum over k of an element of the result is made in order, pair after pair (AMX: 16 pairs after 16 pairs), whatever
// the tile that it is in and however k is cut (AMX: at multiples of 32): its bits depend on nothing else.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "backend/cpu/kernels.h"
#include "tensor/halves.h"

namespace scaletrain::cpu {

constexpr ptrdiff_t bf16_panel_columns = 64;
constexpr ptrdiff_t bf16_block_rows = 48;

// A tile of rows × columns: sums = (begins ? 0 : sums) + a · b, times alpha. Then, if there is an output, that is sums
// + bias + addend, rounded, and what the sums hold afterwards is undefined.
struct Bf16Tile {
  const void* a = nullptr;
  ptrdiff_t a_block_bytes = 0;  // between blocks of 48 rows
  ptrdiff_t a_row_bytes = 0;
  ptrdiff_t a_pair_bytes = 0;
  const Bf16* b = nullptr;      // packed
  ptrdiff_t b_panel_bytes = 0;  // between panels
  size_t rows = 0;
  size_t columns = 0;
  size_t pairs = 0;
  int begins = 0;
  float alpha = 1.0F;
  float* sums = nullptr;  // may be null with `begins` and an output
  ptrdiff_t sums_stride = 0;
  Bf16* output = nullptr;  // or null
  ptrdiff_t output_stride = 0;
  const Bf16* bias = nullptr;    // or null, one per column
  const Bf16* addend = nullptr;  // or null; may be the output
  ptrdiff_t addend_stride = 0;
};

struct Bf16Kernels {
  const char* name;   // as an instruction set is asked for
  const char* title;  // for people
  void (*product)(const Bf16Tile& tile);
  // B from a matrix that lies as [columns][k] (pack_columns) or [k][columns] (pack_rows).
  void (*pack_columns)(const Bf16* matrix, ptrdiff_t stride, size_t columns, size_t k, Bf16* panels,
                       ptrdiff_t panel_bytes);
  void (*pack_rows)(const Bf16* matrix, ptrdiff_t stride, size_t columns, size_t k, Bf16* panels,
                    ptrdiff_t panel_bytes);
  // A from a matrix that lies as [k][rows].
  int packs_rows;
  void (*pack_a)(const Bf16* matrix, ptrdiff_t stride, size_t rows, size_t k, Bf16* blocks, ptrdiff_t block_bytes);

  // The softmax of attention as in Kernels, with what is multiplied next rounded to bf16: rows of `stride` elements
  // with zeros up to an even number of columns. Scores are only read.
  void (*softmax_forward)(const ScoreBlock& block, const OnlineSoftmax& state, Rows output, size_t output_columns,
                          RowsOf<Bf16> probabilities);
  // d_scores = scale · P · (dP - delta).
  void (*softmax_backward)(const ScoreBlock& block, const float* log_sum_exp, const float* delta, float scale,
                           const float* d_probabilities, RowsOf<Bf16> probabilities, RowsOf<Bf16> d_scores);
  // output[i] = a row i · b row i.
  void (*row_dots)(RowsOf<const Bf16> a, RowsOf<const Bf16> b, size_t rows, size_t length, float* output);
};

const Bf16Kernels& bf16_kernels_avx512();
const Bf16Kernels& bf16_kernels_amx();

}  // namespace scaletrain::cpu
