// What an optimizer of factored second moments (Adafactor) does with parts of matrices.
#include <algorithm>

#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/kernels/launching.h"
#include "backend/cuda/kernels/spans.h"
#include "backend/cuda/kernels/sums.h"

namespace scaletrain::cuda {

namespace {

// Contiguous in row-major order.
struct MatrixPart {
  std::int64_t elements, first_column, columns;
  __host__ __device__ std::int64_t rows() const {
    return elements == 0 ? 0 : (first_column + elements + columns - 1) / columns;
  }
};

// A block has a row, and as many threads as a row of so many columns has work for.
__global__ void sum_squares_of_rows(const float* values, const MatrixPart part, double* sums) {
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  const std::int64_t from = row * part.columns - part.first_column;
  const std::int64_t begin = from > 0 ? from : 0;
  const std::int64_t end = from + part.columns < part.elements ? from + part.columns : part.elements;
  double sum = 0;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += blockDim.x)
    sum += static_cast<double>(values[i]) * values[i];
  sum = block_sum(sum, shared_memory<double>());
  if (threadIdx.x == 0) sums[row] = sum;
}

// A thread has a column of so many rows, a block neighbouring ones. How a matrix is cut follows from its extents.
constexpr std::int64_t rows_at_once = 64;

__global__ void sum_squares_of_columns(const float* values, const MatrixPart part, std::int64_t rows_of_block,
                                       int blocks_of_rows, double* sums) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x % blocks_of_rows) * threads_of_block + threadIdx.x;
  const auto index = static_cast<std::int64_t>(blockIdx.x / blocks_of_rows);
  if (column >= part.columns) return;
  const std::int64_t first = index * rows_of_block;
  const std::int64_t last = first + rows_of_block < part.rows() ? first + rows_of_block : part.rows();
  double sum = 0;
#pragma unroll 8
  for (std::int64_t row = first; row < last; ++row) {
    const std::int64_t element = row * part.columns + column - part.first_column;
    const float value = element >= 0 && element < part.elements ? values[element] : 0.0F;
    sum += static_cast<double>(value) * value;
  }
  sums[index * part.columns + column] = sum;
}

__global__ void add_sums_of_columns(const double* sums, std::int64_t count, std::int64_t columns, double* results) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * threads_of_block + threadIdx.x;
  if (column >= columns) return;
  double sum = 0;
#pragma unroll 8
  for (std::int64_t index = 0; index < count; ++index) sum += sums[index * columns + column];
  results[column] = sum;
}

template <int width>
__global__ void make_factored_direction(float* gradient, const MatrixPart part, const float* rows, const float* columns,
                                        float largest, const StepScalars* step) {
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * threads_of_block + threadIdx.x) * width;
  if (first >= part.elements || step->skip != 0) return;
  const auto scale = static_cast<float>(step->gradient_scale);
  float g[width];
  load(gradient + first, part.elements - first, g);
  std::int64_t row = (part.first_column + first) / part.columns;
  std::int64_t column = (part.first_column + first) % part.columns;
#pragma unroll
  for (int i = 0; i < width; ++i) {
    if (first + i < part.elements) g[i] = g[i] * scale * fminf(rows[row] * columns[column], largest);
    if (++column == part.columns) {
      column = 0;
      ++row;
    }
  }
  store(gradient + first, part.elements - first, g);
}

MatrixPart part_of(const ConstView& values, std::int64_t first_column, const ConstView& columns) {
  return {values.num_elements(), first_column, columns.num_elements()};
}

}  // namespace

template <class S>
void compute(const Issue& issue, const MatrixSquares& op) {
  const MatrixPart part = part_of(op.values, op.first_column, op.columns);
  const auto* const values = address<float>(op.values);
  if (part.rows() > 0) {
    const auto warps = static_cast<unsigned>(
        std::min(ceil_div<std::int64_t>(part.columns, warp_lanes), std::int64_t{threads_of_block / warp_lanes}));
    launch(issue.stream, {blocks_for(part.rows(), 1), warps * warp_lanes, warps * sizeof(double)}, sum_squares_of_rows,
           values, part, address<double>(op.rows));
  }
  const auto most = static_cast<std::int64_t>(workspace_bytes / sizeof(double)) / part.columns;
  SCALETRAIN_CHECK(most > 0);
  const std::int64_t rows_of_block = std::max(rows_at_once, ceil_div(part.rows(), most));
  const std::int64_t count = ceil_div(part.rows(), rows_of_block);
  const auto blocks_of_rows = narrow<int>(ceil_div<std::int64_t>(part.columns, threads_of_block));
  auto* const sums = reinterpret_cast<double*>(issue.workspace);
  if (count > 0)
    launch(issue.stream, {blocks_for(count * blocks_of_rows, 1), threads_of_block}, sum_squares_of_columns, values,
           part, rows_of_block, blocks_of_rows, sums);
  launch(issue.stream, {blocks_for(part.columns), threads_of_block}, add_sums_of_columns, sums, count, part.columns,
         address<double>(op.columns));
}

template <class S>
void compute(const Issue& issue, const FactoredDirection& op) {
  const MatrixPart part = part_of(op.gradient, op.first_column, op.columns);
  if (part.elements == 0) return;
  auto* const gradient = address<float>(op.gradient);
  with_width<float>(fits_packs<float>(0, gradient), [&](auto width) {
    launch(issue.stream, {blocks_for(ceil_div<std::int64_t>(part.elements, width)), threads_of_block},
           make_factored_direction<width>, gradient, part, address<float>(op.rows), address<float>(op.columns),
           static_cast<float>(op.largest), step_of(op.step));
  });
}

SCALETRAIN_FOR_COMPUTE_TYPES(MatrixSquares)
SCALETRAIN_FOR_COMPUTE_TYPES(FactoredDirection)

}  // namespace scaletrain::cuda
