// Tiles of operands in shared memory, and what a warp multiplies them to: in bf16 and fp16 by tensor cores, in f32 by
// multiply-adds. Both sum in f32. Read behind cuda_language.h.
//
// A warp has `stack` bands of 16 rows of a result, so that what it reads of a second factor serves as many products:
// one ldmatrix takes shared memory as long as two mma take tensor cores. Of every 8 columns of a band, lane l holds row
// l / 4 at columns 2·(l % 4) and the next, then row l / 4 + 8 at the same: so mma.m16n8k16 leaves them, and so it takes
// 16 columns of them as its first factor again.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "backend/cuda/kernels/elements.h"
#include "backend/cuda/kernels/sums.h"
#include "cuda_language.h"

namespace scaletrain::cuda {

constexpr int rows_of_band = 16;

template <int stack, int columns>
using WarpSums = float[stack][columns / 8][4];

// Heads that have so many columns less than a tile are multiplied no further than they go, by so many at a time. Others
// are multiplied without branches, which keep instructions apart that should overlap.
constexpr int checked_columns = 32;
template <int columns, class Body>
__device__ inline void with_step_of_columns(int width, Body&& body) {
  if (width > columns - checked_columns)
    body(std::integral_constant<int, columns>());
  else
    body(std::integral_constant<int, checked_columns>());
}

// Rows of a tile are 16 bytes further apart than they are long: eight of them then lie in different banks.
template <class S, int columns>
constexpr int tile_stride = columns + pack_elements<S>;
template <class S, int rows, int columns>
constexpr int tile_elements = rows* tile_stride<S, columns>;

// A matrix in global memory, of whose rows tiles are made.
template <class S>
struct Rows {
  const S* first = nullptr;
  int stride = 0;
  int count = 0;  // that there are
  int width = 0;  // columns that there are, which may be more or fewer than a tile has
};

// Begins to fill a tile with the rows from `first` on: what the matrix lacks is zero. All `threads` of the block; they
// find it there after wait_for_copies() and a barrier. packs: rows begin at multiples of 16 bytes, and the width is
// one.
template <class S, int rows, int columns, int threads>
__device__ inline void load_tile(S* tile, const Rows<S>& from, int first, bool packs) {
  constexpr int width = pack_elements<S>;
  constexpr int packs_of_row = columns / width;
  constexpr int rows_at_once = threads / packs_of_row;
  static_assert(threads % packs_of_row == 0 && rows % rows_at_once == 0);
  const int row = static_cast<int>(threadIdx.x) / packs_of_row;
  const int column = static_cast<int>(threadIdx.x) % packs_of_row * width;
  const S* source = from.first + static_cast<std::int64_t>(first + row) * from.stride + column;
  S* const to = tile + row * tile_stride<S, columns> + column;
  if (packs && from.count - first >= rows && from.width >= columns) {
#pragma unroll
    for (int i = 0; i < rows; i += rows_at_once)
      copy_async(to + i * tile_stride<S, columns>, source + static_cast<std::int64_t>(i) * from.stride);
    return;
  }
#pragma unroll 1
  for (int i = 0; i < rows; i += rows_at_once) {
    S* const row_of_tile = to + i * tile_stride<S, columns>;
    const int left = first + row + i < from.count ? from.width - column : 0;
    if (packs && left > 0) {
      copy_async(row_of_tile, source);
    } else {
#pragma unroll
      for (int j = 0; j < width; ++j) row_of_tile[j] = j < left ? source[j] : from_float<S>(0.0F);
    }
    source += static_cast<std::int64_t>(rows_at_once) * from.stride;
  }
}

template <class S>
__device__ inline unsigned bits_of_pair(float low, float high) {
  const Pack<S, 2> pair = {from_float<S>(low), from_float<S>(high)};
  unsigned bits = 0;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}

// The warp's rows of a first factor, read from its tile whenever they are multiplied.
template <class S, int stack, int columns>
class ReadRows {
 public:
  __device__ void read(const S* rows) { rows_ = rows; }
  // What a lane brings of columns [k, k + 16) of a band.
  __device__ void fragment(int band, int k, unsigned (&of_a)[4]) const {
    const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
    load_matrices(of_a, rows_ + (band * rows_of_band + lane % 16) * tile_stride<S, columns> + lane / 16 * 8 + k);
  }
  __device__ const S* rows() const { return rows_; }

 private:
  const S* rows_ = nullptr;
};

// The same, read once and kept in registers: columns / 8 of them for each band.
template <class S, int stack, int columns>
class KeptRows {
 public:
  __device__ void read(const S* rows) {
    ReadRows<S, stack, columns> from;
    from.read(rows);
#pragma unroll
    for (int band = 0; band < stack; ++band) {
#pragma unroll
      for (int k = 0; k < columns / 16; ++k) from.fragment(band, k * 16, fragments_[band][k]);
    }
  }
  __device__ void fragment(int band, int k, unsigned (&of_a)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) of_a[i] = fragments_[band][k / 16][i];
  }

 private:
  unsigned fragments_[stack][columns / 16][4];
};
template <bool kept, class S, int stack, int columns>
using FirstFactor = std::conditional_t<kept, KeptRows<S, stack, columns>, ReadRows<S, stack, columns>>;

// sums[i, j] += a[i, :] · b[j, :] for the warp's rows of a and n rows of b, over `width` columns.
template <class S, int stack, int n, int columns, class RowsOfA>
__device__ inline void multiply_rows(WarpSums<stack, n>& sums, const RowsOfA& a, const S* b, int width) {
  constexpr int stride = tile_stride<S, columns>;
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  if constexpr (sizeof(S) == 2) {
    const S* const row_of_b = b + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8;
    with_step_of_columns<columns>(width, [&](auto step) {
#pragma unroll
      for (int k = 0; k < columns; k += 16) {
        if (k % decltype(step)::value == 0 && k > 0 && k >= width) break;
        unsigned of_a[stack][4];
#pragma unroll
        for (int band = 0; band < stack; ++band) a.fragment(band, k, of_a[band]);
#pragma unroll
        for (int j = 0; j < n / 16; ++j) {
          unsigned of_b[4];
          load_matrices(of_b, row_of_b + j * 16 * stride + k);
#pragma unroll
          for (int band = 0; band < stack; ++band) {
            multiply_matrices<S>(sums[band][2 * j], of_a[band], of_b[0], of_b[1]);
            multiply_matrices<S>(sums[band][2 * j + 1], of_a[band], of_b[2], of_b[3]);
          }
        }
      }
    });
  } else {
    constexpr int pack = pack_elements<S>;
    static_assert(stack == 1);
    const S* const row_of_a = a.rows() + lane / 4 * stride;
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
            sums[0][j][i] += low[e] * of_b[e];
            sums[0][j][2 + i] += high[e] * of_b[e];
          }
        }
      }
    }
  }
}

// What multiply_values needs of shared memory, for each warp.
template <class S, int n>
constexpr int scratch_elements = sizeof(S) == 2 ? 0 : rows_of_band* tile_stride<S, n>;

// sums[i, :] += factors[i, j] · b[j, :] for n rows of b; factors are rounded to S.
template <class S, int stack, int n, int columns>
__device__ inline void multiply_values(WarpSums<stack, columns>& sums, const WarpSums<stack, n>& factors, const S* b,
                                       int width, [[maybe_unused]] S* scratch) {
  constexpr int stride = tile_stride<S, columns>;
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  if constexpr (sizeof(S) == 2) {
    unsigned of_a[n / 16][stack][4];
#pragma unroll
    for (int k = 0; k < n / 16; ++k) {
#pragma unroll
      for (int band = 0; band < stack; ++band) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float(&from)[4] = factors[band][2 * k + i / 2];
          of_a[k][band][i] = bits_of_pair<S>(from[i % 2 * 2], from[i % 2 * 2 + 1]);
        }
      }
    }
    const S* const row_of_b = b + lane % 16 * stride + lane / 16 * 8;
    with_step_of_columns<columns>(width, [&](auto step) {
#pragma unroll
      for (int first = 0; first < columns; first += checked_columns) {
        if (first % decltype(step)::value == 0 && first > 0 && first >= width) break;
#pragma unroll
        for (int k = 0; k < n / 16; ++k) {
#pragma unroll
          for (int j = first / 16; j < (first + checked_columns) / 16; ++j) {
            unsigned of_b[4];
            load_matrices_transposed(of_b, row_of_b + k * 16 * stride + j * 16);
#pragma unroll
            for (int band = 0; band < stack; ++band) {
              multiply_matrices<S>(sums[band][2 * j], of_a[k][band], of_b[0], of_b[1]);
              multiply_matrices<S>(sums[band][2 * j + 1], of_a[k][band], of_b[2], of_b[3]);
            }
          }
        }
      }
    });
  } else {
    constexpr int pack = pack_elements<S>;
    constexpr int scratch_stride = tile_stride<S, n>;
    const int row = lane / 4;
    const int pair = lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < n / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scratch[(row + i / 2 * 8) * scratch_stride + j * 8 + pair + i % 2] = factors[0][j][i];
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
            sums[0][j][i] += low[e] * of_b[i];
            sums[0][j][2 + i] += high[e] * of_b[i];
          }
        }
      }
    }
    __syncwarp();
  }
}

// Stores what a warp has summed, times a factor for each of the lane's rows, to rows that there are.
template <class S, int stack, int columns>
__device__ inline void store_sums(S* first, std::int64_t stride, std::int64_t rows, std::int64_t width,
                                  const WarpSums<stack, columns>& sums, const float (&factors)[stack][2], bool packs) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
#pragma unroll
  for (int band = 0; band < stack; ++band) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = band * rows_of_band + lane / 4 + i * 8;
      if (row >= rows) continue;
      S* const to_row = first + row * stride;
#pragma unroll
      for (int j = 0; j < columns / 8; ++j) {
        const int column = j * 8 + lane % 4 * 2;
        const float pair[2] = {sums[band][j][2 * i] * factors[band][i], sums[band][j][2 * i + 1] * factors[band][i]};
        S* const to = to_row + column;
        if (packs) {
          if (column < width) store(to, 2, pair);
        } else {
          if (column < width) to[0] = from_float<S>(pair[0]);
          if (column + 1 < width) to[1] = from_float<S>(pair[1]);
        }
      }
    }
  }
}

}  // namespace scaletrain::cuda
