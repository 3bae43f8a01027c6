// Sums over the rows of matrices, column by column, in an order that does not change: parts of the rows are summed by
// blocks of their own into the workspace, and then added up in their order. Read behind cuda_language.h.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/kernels/launching.h"
#include "backend/cuda/kernels/sums.h"

namespace scaletrain::cuda {

constexpr std::int64_t max_row_parts = 128;
constexpr std::int64_t least_rows_of_part = 32;
// Parts are added up by so many warps of a block, each of every so-many-th part, whose sums are then added in order.
constexpr unsigned adding_warps = threads_of_block / warp_lanes;

struct RowParts {
  std::int64_t count = 0;
  std::int64_t rows = 0;  // of each but the last
};

// For `sums` sums of each column: [parts, sums, columns] of f32 in the workspace. There is at least one row.
inline RowParts row_parts(std::int64_t rows, std::int64_t columns, std::int64_t sums,
                          std::int64_t most_parts = max_row_parts) {
  const auto capacity = static_cast<std::int64_t>(workspace_bytes / sizeof(float)) / (sums * columns);
  SCALETRAIN_CHECK_LE(std::int64_t{1}, capacity);
  const std::int64_t most = std::clamp<std::int64_t>(rows / least_rows_of_part, 1, std::min(most_parts, capacity));
  const std::int64_t of_each = (rows + most - 1) / most;
  return {(rows + of_each - 1) / of_each, of_each};
}

namespace {

// of_first[column] += the sum over parts of partial[part, 0, column]; of_second (or null), where there are two sums,
// the same of partial[part, 1, column]. A block has the columns of a warp's lanes.
__global__ void add_parts(const float* partial, std::int64_t parts, std::int64_t sums, std::int64_t columns,
                          float* of_first, float* of_second) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * warp_lanes + threadIdx.x % warp_lanes;
  const unsigned warp = threadIdx.x / warp_lanes;
  float* const shared = shared_memory<float>();  // [adding_warps, sums, warp_lanes]
  for (std::int64_t sum = 0; sum < sums; ++sum) {
    float value = 0.0F;
    if (column < columns) {
#pragma unroll 8
      for (std::int64_t part = warp; part < parts; part += adding_warps)
        value += partial[(part * sums + sum) * columns + column];
    }
    shared[(warp * sums + sum) * warp_lanes + threadIdx.x % warp_lanes] = value;
  }
  __syncthreads();
  if (warp >= sums || column >= columns) return;
  float* const of = warp == 0 ? of_first : of_second;
  if (of == nullptr) return;
  float total = 0.0F;
  for (unsigned other = 0; other < adding_warps; ++other)
    total += shared[(other * sums + warp) * warp_lanes + threadIdx.x % warp_lanes];
  of[column] += total;
}

}  // namespace

inline void issue_add_parts(const Issue& issue, const float* partial, const RowParts& parts, std::int64_t sums,
                            std::int64_t columns, float* of_first, float* of_second) {
  launch(issue.stream,
         {blocks_for(columns, warp_lanes), threads_of_block,
          static_cast<std::size_t>(sums) * threads_of_block * sizeof(float)},
         add_parts, partial, parts.count, sums, columns, of_first, of_second);
}

}  // namespace scaletrain::cuda
