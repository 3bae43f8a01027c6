// Layer norm and RMS norm. A warp has a row; what it reads again is in the first-level cache.
#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/kernels/launching.h"
#include "backend/cuda/kernels/row_parts.h"
#include "backend/cuda/kernels/sums.h"

namespace scaletrain::cuda {

namespace {

constexpr int rows_of_block = threads_of_block / warp_lanes;

// The row of this thread's warp.
__device__ inline std::int64_t row_of_warp() {
  return static_cast<std::int64_t>(blockIdx.x) * rows_of_block + threadIdx.x / warp_lanes;
}

// body(first, left) for the lane's packs of a row, in order.
template <int width, class Body>
__device__ inline void for_packs(std::int64_t columns, Body&& body) {
  for (std::int64_t first = static_cast<std::int64_t>(threadIdx.x % warp_lanes) * width; first < columns;
       first += warp_lanes * width)
    body(first, columns - first);
}

// mean is null for an RMS norm. `scale` may be the weight alone.
template <class S, int width>
__global__ void normalise(const S* input, const S* weight, const S* bias, S* output, float* mean, float* rstd,
                          std::int64_t rows, std::int64_t columns, float epsilon) {
  const std::int64_t row = row_of_warp();
  if (row >= rows) return;
  const S* const x = input + row * columns;
  const float inverse_columns = 1.0F / static_cast<float>(columns);
  float centre = 0.0F;
  if (mean != nullptr) {
    float sum = 0.0F;
    for_packs<width>(columns, [&](std::int64_t first, std::int64_t left) {
      float values[width];
      load(x + first, left, values);
#pragma unroll
      for (int i = 0; i < width; ++i) sum += values[i];
    });
    centre = warp_sum(sum) * inverse_columns;
  }
  float squares = 0.0F;
  for_packs<width>(columns, [&](std::int64_t first, std::int64_t left) {
    float values[width];
    load(x + first, left, values);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      const float apart = i < left ? values[i] - centre : 0.0F;
      squares += apart * apart;
    }
  });
  const float inverse = 1.0F / sqrtf(warp_sum(squares) * inverse_columns + epsilon);
  for_packs<width>(columns, [&](std::int64_t first, std::int64_t left) {
    float values[width];
    float scale[width];
    float offset[width] = {};
    load(x + first, left, values);
    load(weight + first, left, scale);
    if (bias != nullptr) load(bias + first, left, offset);
#pragma unroll
    for (int i = 0; i < width; ++i) values[i] = (values[i] - centre) * inverse * scale[i] + offset[i];
    store(output + row * columns + first, left, values);
  });
  if (threadIdx.x % warp_lanes != 0) return;
  if (mean != nullptr) mean[row] = centre;
  rstd[row] = inverse;
}

template <class S>
struct BackwardRows {
  const S* d_output;
  const S* input;
  const S* weight;
  const float* mean;  // null for an RMS norm
  const float* rstd;
  const S* addend;  // or null
  S* d_input;
  std::int64_t rows, columns;
};

// With x̂ = (x - mean) · rstd and g = d_output · weight: d_input = rstd · (g - mean(g) - x̂ · mean(g · x̂)), without
// mean(g) for an RMS norm.
template <class S, int width>
__global__ void normalise_backward(const BackwardRows<S> op) {
  const std::int64_t row = row_of_warp();
  if (row >= op.rows) return;
  const std::int64_t start = row * op.columns;
  const float centre = op.mean != nullptr ? op.mean[row] : 0.0F;
  const float inverse = op.rstd[row];
  const auto load_pack = [&](std::int64_t first, std::int64_t left, float(&x)[width], float(&g)[width]) {
    float scale[width];
    load(op.input + start + first, left, x);
    load(op.d_output + start + first, left, g);
    load(op.weight + first, left, scale);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      x[i] = (x[i] - centre) * inverse;
      g[i] *= scale[i];  // zero beyond the row
    }
  };
  float sum = 0.0F;
  float products = 0.0F;
  for_packs<width>(op.columns, [&](std::int64_t first, std::int64_t left) {
    float x[width];
    float g[width];
    load_pack(first, left, x, g);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      sum += g[i];
      products += g[i] * x[i];
    }
  });
  const float inverse_columns = 1.0F / static_cast<float>(op.columns);
  const float mean_of_g = op.mean != nullptr ? warp_sum(sum) * inverse_columns : 0.0F;
  const float mean_of_products = warp_sum(products) * inverse_columns;
  for_packs<width>(op.columns, [&](std::int64_t first, std::int64_t left) {
    float x[width];
    float g[width];
    float added[width] = {};
    load_pack(first, left, x, g);
    if (op.addend != nullptr) load(op.addend + start + first, left, added);
#pragma unroll
    for (int i = 0; i < width; ++i) g[i] = inverse * (g[i] - mean_of_g - x[i] * mean_of_products) + added[i];
    store(op.d_input + start + first, left, g);
  });
}

// A warp's lanes have neighbouring columns, a block's warps every eighth row of its part of the rows. partial:
// [parts, 2, columns].
template <class S>
__global__ void sum_rows(const S* d_output, const S* input, const float* mean, const float* rstd, std::int64_t rows,
                         std::int64_t columns, std::int64_t rows_of_part, float* partial) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * warp_lanes + threadIdx.x % warp_lanes;
  const std::int64_t begin = blockIdx.y * rows_of_part;
  const std::int64_t end = begin + rows_of_part < rows ? begin + rows_of_part : rows;
  float of_weight = 0.0F;
  float of_bias = 0.0F;
  if (column < columns)
    for (std::int64_t row = begin + threadIdx.x / warp_lanes; row < end; row += rows_of_block) {
      const float d = to_float(d_output[row * columns + column]);
      const float centre = mean != nullptr ? mean[row] : 0.0F;
      of_weight += d * ((to_float(input[row * columns + column]) - centre) * rstd[row]);
      of_bias += d;
    }
  auto* const shared = shared_memory<float>();  // [2, threads]
  shared[threadIdx.x] = of_weight;
  shared[threads_of_block + threadIdx.x] = of_bias;
  __syncthreads();
  if (threadIdx.x >= warp_lanes || column >= columns) return;
  for (unsigned warp = 1; warp < rows_of_block; ++warp) {
    of_weight += shared[warp * warp_lanes + threadIdx.x];
    of_bias += shared[threads_of_block + warp * warp_lanes + threadIdx.x];
  }
  partial[(blockIdx.y * 2 + 0) * columns + column] = of_weight;
  partial[(blockIdx.y * 2 + 1) * columns + column] = of_bias;
}

}  // namespace

template <class S>
void compute(const Issue& issue, const NormForward& op) {
  const std::int64_t rows = op.input.shape()[0];
  const std::int64_t columns = op.input.shape()[1];
  if (rows == 0) return;
  const auto* input = address<S>(op.input);
  const auto* weight = address<S>(op.weight);
  const auto* bias = address<S>(op.bias);
  auto* output = address<S>(op.output);
  auto* mean = op.type == NormType::layernorm ? address<float>(op.mean) : nullptr;
  with_width<S>(fits_packs<S>(columns, input, weight, bias, output), [&](auto width) {
    launch(issue.stream, {blocks_for(rows, rows_of_block), threads_of_block}, normalise<S, width>, input, weight, bias,
           output, mean, address<float>(op.rstd), rows, columns, static_cast<float>(op.epsilon));
  });
}

template <class S>
void compute(const Issue& issue, const NormBackwardInput& op) {
  const BackwardRows<S> rows = {.d_output = address<S>(op.d_output),
                                .input = address<S>(op.input),
                                .weight = address<S>(op.weight),
                                .mean = op.type == NormType::layernorm ? address<float>(op.mean) : nullptr,
                                .rstd = address<float>(op.rstd),
                                .addend = address<S>(op.addend),
                                .d_input = address<S>(op.d_input),
                                .rows = op.input.shape()[0],
                                .columns = op.input.shape()[1]};
  if (rows.rows == 0) return;
  const bool fits = fits_packs<S>(rows.columns, rows.d_output, rows.input, rows.weight, rows.addend, rows.d_input);
  with_width<S>(fits, [&](auto width) {
    launch(issue.stream, {blocks_for(rows.rows, rows_of_block), threads_of_block}, normalise_backward<S, width>, rows);
  });
}

template <class S>
void compute(const Issue& issue, const NormBackwardWeight& op) {
  const std::int64_t rows = op.input.shape()[0];
  const std::int64_t columns = op.input.shape()[1];
  if (rows == 0) return;
  auto* partial = reinterpret_cast<float*>(issue.workspace);
  const RowParts parts = row_parts(rows, columns, 2);
  const dim3 blocks(blocks_for(columns, warp_lanes).x, narrow<unsigned>(parts.count));
  launch(issue.stream, {blocks, threads_of_block, 2 * threads_of_block * sizeof(float)}, sum_rows<S>,
         address<S>(op.d_output), address<S>(op.input),
         op.type == NormType::layernorm ? address<float>(op.mean) : nullptr, address<float>(op.rstd), rows, columns,
         parts.rows, partial);
  issue_add_parts(issue, partial, parts, 2, columns, address<float>(op.d_weight), address<float>(op.d_bias));
}

SCALETRAIN_FOR_COMPUTE_TYPES(NormForward)
SCALETRAIN_FOR_COMPUTE_TYPES(NormBackwardInput)
SCALETRAIN_FOR_COMPUTE_TYPES(NormBackwardWeight)

}  // namespace scaletrain::cuda
