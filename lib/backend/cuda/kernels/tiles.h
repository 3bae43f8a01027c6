// Tiles of operands in shared memory, and what a warp multiplies them to: in bf16 and fp16 by tensor cores, in f32 by
// multiply-adds. Both sum in f32. Read behind cuda_language.h.
//
// A warp has 16 rows of a result. Of every 8 columns, lane l holds row l / 4 at columns 2·(l % 4) and the next, then
// row l / 4 + 8 at the same: so mma.m16n8k16 leaves them, and so it takes 16 columns of them as its first factor again.
#pragma once

#include <cstdint>
#include <cstring>

#include "backend/cuda/kernels/elements.h"
#include "backend/cuda/kernels/sums.h"
#include "cuda_language.h"

namespace scaletrain::cuda {

constexpr int rows_of_warp = 16;

template <int columns>
using WarpSums = float[columns / 8][4];

// Rows of a tile are 16 bytes further apart than they are long: eight of them then lie in different banks.
template <class S, int columns>
constexpr int tile_stride = columns + pack_elements<S>;
template <class S, int rows, int columns>
constexpr int tile_elements = rows* tile_stride<S, columns>;

// Part of an operand in global memory.
template <class S>
struct Rows {
  const S* first = nullptr;
  std::int64_t stride = 0;
  std::int64_t count = 0;  // that there are, which may be more or fewer than a tile has
  std::int64_t width = 0;  // columns that there are
};

// Begins to fill a tile: what the operand lacks is zero. All threads of the block; they find it there after
// wait_for_copies() and a barrier. packs: rows begin at multiples of 16 bytes, and the width is one.
template <class S, int rows, int columns>
__device__ inline void load_tile(S* tile, const Rows<S>& from, bool packs) {
  constexpr int width = pack_elements<S>;
  constexpr int packs_of_row = columns / width;
  for (int i = static_cast<int>(threadIdx.x); i < rows * packs_of_row; i += static_cast<int>(blockDim.x)) {
    const int row = i / packs_of_row;
    const int column = i % packs_of_row * width;
    S* const to = tile + row * tile_stride<S, columns> + column;
    const std::int64_t left = row < from.count ? from.width - column : 0;
    const S* const source = from.first + row * from.stride + column;
    if (packs && left > 0) {
      copy_async(to, source);
    } else {
#pragma unroll
      for (int j = 0; j < width; ++j) to[j] = j < left ? source[j] : from_float<S>(0.0F);
    }
  }
}

template <class S>
__device__ inline unsigned bits_of_pair(float low, float high) {
  const Pack<S, 2> pair = {from_float<S>(low), from_float<S>(high)};
  unsigned bits = 0;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}

// sums[i, j] += a[i, :] · b[j, :] for the warp's 16 rows of a and n rows of b, over `width` columns.
template <class S, int n, int columns>
__device__ inline void multiply_rows(WarpSums<n>& sums, const S* a, const S* b, int width) {
  constexpr int stride = tile_stride<S, columns>;
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  if constexpr (sizeof(S) == 2) {
    const S* const row_of_a = a + lane % 16 * stride + lane / 16 * 8;
    const S* const row_of_b = b + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8;
#pragma unroll
    for (int k = 0; k < columns; k += 16) {
      if (k >= width) break;
      unsigned of_a[4];
      load_matrices(of_a, row_of_a + k);
#pragma unroll
      for (int j = 0; j < n / 16; ++j) {
        unsigned of_b[4];
        load_matrices(of_b, row_of_b + j * 16 * stride + k);
        multiply_matrices<S>(sums[2 * j], of_a, of_b[0], of_b[1]);
        multiply_matrices<S>(sums[2 * j + 1], of_a, of_b[2], of_b[3]);
      }
    }
  } else {
    constexpr int pack = pack_elements<S>;
    const S* const row_of_a = a + lane / 4 * stride;
    const S* const row_of_b = b + lane % 4 * 2 * stride;
    for (int k = 0; k < width; k += pack) {
      float low[pack];
      float high[pack];
      load(row_of_a + k, pack, low);
      load(row_of_a + 8 * stride + k, pack, high);
#pragma unroll
      for (int j = 0; j < n / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float of_b[pack];
          load(row_of_b + (j * 8 + i) * stride + k, pack, of_b);
#pragma unroll
          for (int e = 0; e < pack; ++e) {
            sums[j][i] += low[e] * of_b[e];
            sums[j][2 + i] += high[e] * of_b[e];
          }
        }
      }
    }
  }
}

// What multiply_values needs of shared memory, for each warp.
template <class S, int n>
constexpr int scratch_elements = sizeof(S) == 2 ? 0 : rows_of_warp* tile_stride<S, n>;

// sums[i, :] += factors[i, j] · b[j, :] for n rows of b; factors are rounded to S.
template <class S, int n, int columns>
__device__ inline void multiply_values(WarpSums<columns>& sums, const WarpSums<n>& factors, const S* b, int width,
                                       [[maybe_unused]] S* scratch) {
  constexpr int stride = tile_stride<S, columns>;
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  if constexpr (sizeof(S) == 2) {
    const S* const row_of_b = b + lane % 16 * stride + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < n / 16; ++k) {
      const float(&first)[4] = factors[2 * k];
      const float(&second)[4] = factors[2 * k + 1];
      const unsigned of_a[4] = {bits_of_pair<S>(first[0], first[1]), bits_of_pair<S>(first[2], first[3]),
                                bits_of_pair<S>(second[0], second[1]), bits_of_pair<S>(second[2], second[3])};
#pragma unroll
      for (int j = 0; j < columns / 16; ++j) {
        if (j * 16 >= width) break;
        unsigned of_b[4];
        load_matrices_transposed(of_b, row_of_b + k * 16 * stride + j * 16);
        multiply_matrices<S>(sums[2 * j], of_a, of_b[0], of_b[1]);
        multiply_matrices<S>(sums[2 * j + 1], of_a, of_b[2], of_b[3]);
      }
    }
  } else {
    constexpr int pack = pack_elements<S>;
    constexpr int scratch_stride = tile_stride<S, n>;
    const int row = lane / 4;
    const int pair = lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < n / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scratch[(row + i / 2 * 8) * scratch_stride + j * 8 + pair + i % 2] = factors[j][i];
    }
    __syncwarp();
    for (int k = 0; k < n; k += pack) {
      float low[pack];
      float high[pack];
      load(scratch + row * scratch_stride + k, pack, low);
      load(scratch + (row + 8) * scratch_stride + k, pack, high);
#pragma unroll
      for (int j = 0; j < columns / 8; ++j) {
#pragma unroll
        for (int e = 0; e < pack; ++e) {
          float of_b[2];
          load(b + (k + e) * stride + j * 8 + pair, 2, of_b);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            sums[j][i] += low[e] * of_b[i];
            sums[j][2 + i] += high[e] * of_b[i];
          }
        }
      }
    }
    __syncwarp();
  }
}

// Stores what a warp has summed, times a factor for each of the lane's two rows, to rows that there are.
template <class S, int columns>
__device__ inline void store_sums(S* first, std::int64_t stride, std::int64_t rows, std::int64_t width,
                                  const WarpSums<columns>& sums, const float (&factors)[2], bool packs) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = lane / 4 + i * 8;
    if (row >= rows) continue;
#pragma unroll
    for (int j = 0; j < columns / 8; ++j) {
      const int column = j * 8 + lane % 4 * 2;
      const float pair[2] = {sums[j][2 * i] * factors[i], sums[j][2 * i + 1] * factors[i]};
      S* const to = first + row * stride + column;
      if (packs) {
        if (column < width) store(to, 2, pair);
      } else {
        if (column < width) to[0] = from_float<S>(pair[0]);
        if (column + 1 < width) to[1] = from_float<S>(pair[1]);
      }
    }
  }
}

}  // namespace scaletrain::cuda
