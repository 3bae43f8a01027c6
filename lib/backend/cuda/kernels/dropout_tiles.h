// What dropout keeps of the tiles that a warp's matrix instructions make. Read behind cuda_language.h.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/dropout.h"
#include "backend/cuda/kernels/tiles.h"

namespace scaletrain::cuda {

// Of the matrix that says what a head drops: the sample, the row of the first query, and the blocks that a row has.
struct DropoutRows {
  std::int64_t sample, first_row, blocks_of_row;
};

// Of the sums of a warp's tile (tiles.h) a lane has four each in every eight columns of a band: a bit each, those of a
// band after those of another, in one word where they fit, else in a word for each band.
template <int stack, int walk>
constexpr int kept_words = stack* walk / 2 <= 32 ? 1 : stack;
template <int walk, int words>
__device__ inline int first_kept(int band, int j) {
  static_assert(walk <= 64);
  return 4 * ((words == 1 ? band * (walk / 8) : 0) + j);
}
template <int walk, int words>
__device__ inline void keep(unsigned (&kept)[words], int band, int j, unsigned bits) {
  kept[words == 1 ? 0 : band] |= bits << first_kept<walk, words>(band, j);
}
template <int walk, int words>
__device__ inline bool is_kept(const unsigned (&kept)[words], int band, int j, int e) {
  return (kept[words == 1 ? 0 : band] >> (first_kept<walk, words>(band, j) + e) & 1U) != 0;
}

// Lanes that share a block make one each of several, and tell each other: all lanes of the warp come here. To be made
// before the products, while registers are free.
//
// Rows are queries from first_query on, and columns keys from first_key on, a multiple of 4.
template <int stack, int walk, int words>
__device__ inline void kept_in_rows(const DroppedBy& by, const DropoutRows& rows, std::int64_t first_query,
                                    int first_key, unsigned (&kept)[words]) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  const bool is_odd = lane % 2 != 0;  // it makes those of the row 8 further down
#pragma unroll
  for (int band = 0; band < stack; ++band) {
    const std::int64_t row = rows.first_row + first_query + band * rows_of_band + lane / 4 + (is_odd ? 8 : 0);
    std::int64_t block = row * rows.blocks_of_row + first_key / 4 + lane % 4 / 2;
#pragma unroll 1
    for (int j = 0; j < walk / 8; ++j, block += 2) {
      const unsigned own = kept_bits(by, dropout_words(by, rows.sample, block));
      // Both lanes have two columns: the even one the first two of the block.
      const unsigned others = __shfl_xor_sync(all_lanes, own, 1);
      keep<walk>(kept, band, j, is_odd ? (others >> 2) | (own & 12U) : (own & 3U) | (others & 3U) << 2);
    }
  }
}

// The other way round: rows are keys from first_key on, a multiple of 4, and columns queries from first_query on.
template <int stack, int walk, int words>
__device__ inline void kept_in_columns(const DroppedBy& by, const DropoutRows& rows, std::int64_t first_query,
                                       int first_key, unsigned (&kept)[words]) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  const int own = lane / 4 % 4;  // its key in a block, and which of its four elements it makes the block of
#pragma unroll
  for (int band = 0; band < stack; ++band) {
    const std::int64_t row = rows.first_row + first_query + lane % 4 * 2 + own % 2;
    std::int64_t block = row * rows.blocks_of_row + (first_key + band * rows_of_band + own / 2 * 8) / 4 + lane / 16;
#pragma unroll 1
    for (int j = 0; j < walk / 8; ++j, block += 8 * rows.blocks_of_row) {
      const unsigned made = kept_bits(by, dropout_words(by, rows.sample, block));
      // Element e has the bit `own` of what the lane e of the four made.
      unsigned bits = 0;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const unsigned of_element = __shfl_sync(all_lanes, made, (lane & ~12) | e * 4);
        bits |= (of_element >> own & 1U) << e;
      }
      keep<walk>(kept, band, j, bits);
    }
  }
}

}  // namespace scaletrain::cuda
