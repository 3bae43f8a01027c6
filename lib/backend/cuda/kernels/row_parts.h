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

struct RowParts {
  std::int64_t count = 0;
  std::int64_t rows = 0;  // of each but the last
};

// For `sums` sums of each column: [parts, sums, columns] of f32 in the workspace. There is at least one row.
inline RowParts row_parts(std::int64_t rows, std::int64_t columns, std::int64_t sums) {
  const auto capacity = static_cast<std::int64_t>(workspace_bytes / sizeof(float)) / (sums * columns);
  SCALETRAIN_CHECK_LE(std::int64_t{1}, capacity);
  const std::int64_t most = std::clamp<std::int64_t>(rows / least_rows_of_part, 1, std::min(max_row_parts, capacity));
  const std::int64_t of_each = (rows + most - 1) / most;
  return {(rows + of_each - 1) / of_each, of_each};
}

namespace {

// of_first[column] += the sum over parts of partial[part, 0, column]; of_second (or null), where there are two sums,
// the same of partial[part, 1, column].
__global__ void add_parts(const float* partial, std::int64_t parts, std::int64_t sums, std::int64_t columns,
                          float* of_first, float* of_second) {
  const std::int64_t column = first_element<1>();
  if (column >= columns) return;
  float first = 0.0F;
  float second = 0.0F;
  for (std::int64_t part = 0; part < parts; ++part) {
    const float* const of_part = partial + part * sums * columns + column;
    first += of_part[0];
    if (of_second != nullptr) second += of_part[columns];
  }
  of_first[column] += first;
  if (of_second != nullptr) of_second[column] += second;
}

}  // namespace

}  // namespace scaletrain::cuda
