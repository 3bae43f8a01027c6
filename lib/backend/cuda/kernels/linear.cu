// The linear map, and products of any matrices: products are cuBLASLt's, with bias and addend in their epilogue. An
// activation is made of what the output holds, to the bit, and so by the kernel that makes it alone.
#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/kernels/launching.h"
#include "backend/cuda/kernels/row_parts.h"
#include "backend/cuda/products.h"
#include "backend/cuda_module.h"

namespace scaletrain::cuda {

namespace {

constexpr unsigned rows_at_once = threads_of_block / warp_lanes;

// partial[part, column] = the sum over the part's rows. A lane has `width` neighbouring columns, a block's warps every
// eighth row.
template <class S, int width>
__global__ void sum_columns(const S* values, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                            std::int64_t rows_of_part, float* partial) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * warp_lanes + lane) * width;
  const std::int64_t begin = blockIdx.y * rows_of_part;
  const std::int64_t end = begin + rows_of_part < rows ? begin + rows_of_part : rows;
  float sums[width] = {};
  if (column < columns) {
#pragma unroll 4
    for (std::int64_t row = begin + threadIdx.x / warp_lanes; row < end; row += rows_at_once) {
      float x[width];
      load(values + row * stride + column, columns - column, x);
#pragma unroll
      for (int i = 0; i < width; ++i) sums[i] += x[i];
    }
  }
  float* const shared = shared_memory<float>();  // [width, threads]
#pragma unroll
  for (int i = 0; i < width; ++i) shared[static_cast<unsigned>(i) * threads_of_block + threadIdx.x] = sums[i];
  __syncthreads();
  // Warp i has the i-th of the lanes' columns.
  for (unsigned i = threadIdx.x / warp_lanes; i < width; i += rows_at_once) {
    if (column + i >= columns) continue;
    float sum = 0.0F;
    for (unsigned warp = 0; warp < rows_at_once; ++warp) sum += shared[i * threads_of_block + warp * warp_lanes + lane];
    partial[blockIdx.y * columns + column + i] = sum;
  }
}

// values [N, stride], of which the columns that `sums` has.
template <class S>
void add_column_sums(const Issue& issue, const ConstView& values, const View& sums) {
  const std::int64_t rows = values.shape()[0];
  const std::int64_t stride = values.shape()[1];
  const std::int64_t columns = sums.num_elements();
  const auto* matrix = address<S>(values);
  auto* partial = reinterpret_cast<float*>(issue.workspace);
  const RowParts parts = row_parts(rows, columns, 1);
  with_width<S>(fits_packs<S>(stride, matrix), [&](auto width) {
    const dim3 blocks(blocks_for(columns, warp_lanes * width).x, narrow<unsigned>(parts.count));
    launch(issue.stream, {blocks, threads_of_block, width * threads_of_block * sizeof(float)}, sum_columns<S, width>,
           matrix, stride, rows, columns, parts.rows, partial);
  });
  issue_add_parts(issue, partial, parts, 1, columns, address<float>(sums), nullptr);
}

void multiply(const Issue& issue, const Product& product) {
  issue.products->issue(issue.stream, issue.workspace, workspace_bytes, product);
}

// Classes of padded logits in halves that are multiplied together: cuBLASLt's fast kernels want extents that are
// multiples, whatever the strides are. The few that are left over have products of their own; in the gradient of inputs
// what they sum up to is rounded before the rest is added to it.
constexpr std::int64_t class_multiple = cuda_row_alignment;
template <class S>
std::int64_t classes_together(std::int64_t classes, std::int64_t stride) {
  const std::int64_t together = classes / class_multiple * class_multiple;
  return sizeof(S) == 2 && stride > classes && together > 0 ? together : classes;
}

}  // namespace

template <class S>
void compute(const Issue& issue, const LinearForward& op) {
  if (op.output.num_elements() == 0) return;
  constexpr DType type = dtype_of_element<S>();
  const std::int64_t outputs = op.weight.values.shape()[0];
  const std::int64_t inputs = op.input.shape()[1];
  const std::int64_t stride = op.output.shape()[1];
  const auto* bias = address<S>(op.bias);
  const auto multiply_columns = [&](std::int64_t first, std::int64_t count) {
    multiply(issue, {.rows = op.input.shape()[0],
                     .columns = count,
                     .depth = inputs,
                     .factors = type,
                     .result_type = type,
                     .a = address<S>(op.input),
                     .b = address<S>(op.weight.values) + first * inputs,
                     .b_is_transposed = true,
                     .bias = bias == nullptr ? nullptr : bias + first,
                     .addend = address<S>(op.addend),
                     .result = address<S>(op.output) + first,
                     .result_stride = stride});
  };
  const std::int64_t together = classes_together<S>(outputs, stride);
  multiply_columns(0, together);
  if (together < outputs) multiply_columns(together, outputs - together);
  if (op.activated)
    compute<S>(issue, ActivationForward{.type = op.activation, .input = op.output, .output = op.activated});
}

template <class S>
void compute(const Issue& issue, const LinearBackwardInput& op) {
  if (op.d_input.num_elements() == 0) return;
  constexpr DType type = dtype_of_element<S>();
  const std::int64_t outputs = op.weight.values.shape()[0];
  const std::int64_t inputs = op.d_input.shape()[1];
  const std::int64_t stride = op.d_output.shape()[1];
  auto* const d_input = address<S>(op.d_input);
  const auto multiply_depth = [&](std::int64_t first, std::int64_t count, const S* addend) {
    multiply(issue, {.rows = op.d_output.shape()[0],
                     .columns = inputs,
                     .depth = count,
                     .factors = type,
                     .result_type = type,
                     .a = address<S>(op.d_output) + first,
                     .a_stride = stride,
                     .b = address<S>(op.weight.values) + first * inputs,
                     .addend = addend,
                     .result = d_input});
  };
  // The few come first, so that what is rounded on the way is small.
  const std::int64_t together = classes_together<S>(outputs, stride);
  if (together < outputs) multiply_depth(together, outputs - together, nullptr);
  multiply_depth(0, together, together < outputs ? d_input : nullptr);
}

template <class S>
void compute(const Issue& issue, const LinearBackwardWeight& op) {
  if (op.input.shape()[0] == 0) return;
  const std::int64_t outputs = op.d_weight.shape()[0];
  const std::int64_t inputs = op.input.shape()[1];
  const std::int64_t stride = op.d_output.shape()[1];
  const auto multiply_rows = [&](std::int64_t first, std::int64_t count) {
    auto* const d_weight = address<float>(op.d_weight) + first * inputs;
    multiply(issue, {.rows = count,
                     .columns = inputs,
                     .depth = op.input.shape()[0],
                     .factors = dtype_of_element<S>(),
                     .result_type = DType::f32,
                     .a = address<S>(op.d_output) + first,
                     .a_is_transposed = true,
                     .a_stride = stride,
                     .b = address<S>(op.input),
                     .addend = d_weight,
                     .result = d_weight});
  };
  if (op.d_weight.num_elements() > 0) {
    const std::int64_t together = classes_together<S>(outputs, stride);
    multiply_rows(0, together);
    if (together < outputs) multiply_rows(together, outputs - together);
  }
  if (op.d_bias && op.d_bias.num_elements() > 0) add_column_sums<S>(issue, op.d_output, op.d_bias);
}

template <class S>
void compute(const Issue& issue, const MatrixProduct& op) {
  if (op.output.num_elements() == 0) return;
  constexpr DType type = dtype_of_element<S>();
  multiply(issue, {.rows = op.output.shape()[0],
                   .columns = op.output.shape()[1],
                   .depth = op.depth(),
                   .factors = type,
                   .result_type = type,
                   .a = address<S>(op.a),
                   .a_is_transposed = op.a_is_transposed,
                   .b = address<S>(op.b),
                   .b_is_transposed = op.b_is_transposed,
                   .factor = static_cast<float>(op.factor),
                   .addend = address<S>(op.addend),
                   .addend_factor = static_cast<float>(op.addend_factor),
                   .result = address<S>(op.output)});
}

SCALETRAIN_FOR_COMPUTE_TYPES(LinearForward)
SCALETRAIN_FOR_COMPUTE_TYPES(LinearBackwardInput)
SCALETRAIN_FOR_COMPUTE_TYPES(LinearBackwardWeight)
SCALETRAIN_FOR_COMPUTE_TYPES(MatrixProduct)

}  // namespace scaletrain::cuda
