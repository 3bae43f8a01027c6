// The linear map: products are cuBLASLt's, with bias and addend in their epilogue. An activation is made of what the
// output holds, to the bit, and so by the kernel that makes it alone.
#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/kernels/launching.h"
#include "backend/cuda/kernels/row_parts.h"
#include "backend/cuda/products.h"

namespace scaletrain::cuda {

namespace {

// partial[part, column] = the sum over the part's rows. A thread has `width` neighbouring columns.
template <class S, int width>
__global__ void sum_columns(const S* values, std::int64_t rows, std::int64_t columns, std::int64_t rows_of_part,
                            float* partial) {
  const std::int64_t column = first_element<width>();
  if (column >= columns) return;
  const std::int64_t begin = blockIdx.y * rows_of_part;
  const std::int64_t end = begin + rows_of_part < rows ? begin + rows_of_part : rows;
  float sums[width] = {};
  for (std::int64_t row = begin; row < end; ++row) {
    float x[width];
    load(values + row * columns + column, columns - column, x);
#pragma unroll
    for (int i = 0; i < width; ++i) sums[i] += x[i];
  }
  store(partial + blockIdx.y * columns + column, columns - column, sums);
}

template <class S>
void add_column_sums(const Issue& issue, const ConstView& values, const View& sums) {
  const std::int64_t rows = values.shape()[0];
  const std::int64_t columns = values.shape()[1];
  const auto* matrix = address<S>(values);
  auto* partial = reinterpret_cast<float*>(issue.workspace);
  const RowParts parts = row_parts(rows, columns, 1);
  with_width<S>(fits_packs<S>(columns, matrix) && fits_packs<float>(columns, partial), [&](auto width) {
    const dim3 blocks(blocks_for(columns, threads_of_block * width).x, narrow<unsigned>(parts.count));
    launch(issue.stream, {blocks, threads_of_block}, sum_columns<S, width>, matrix, rows, columns, parts.rows, partial);
  });
  launch(issue.stream, {blocks_for(columns), threads_of_block}, add_parts, partial, parts.count, std::int64_t{1},
         columns, address<float>(sums), static_cast<float*>(nullptr));
}

void multiply(const Issue& issue, const Product& product) {
  issue.products->issue(issue.stream, issue.workspace, workspace_bytes, product);
}

}  // namespace

template <class S>
void compute(const Issue& issue, const LinearForward& op) {
  if (op.output.num_elements() == 0) return;
  constexpr DType type = dtype_of_element<S>();
  multiply(issue, {.rows = op.input.shape()[0],
                   .columns = op.weight.values.shape()[0],
                   .depth = op.input.shape()[1],
                   .factors = type,
                   .result_type = type,
                   .a = address<S>(op.input),
                   .b = address<S>(op.weight.values),
                   .b_is_transposed = true,
                   .bias = address<S>(op.bias),
                   .addend = address<S>(op.addend),
                   .result = address<S>(op.output)});
  if (op.activated)
    compute<S>(issue, ActivationForward{.type = op.activation, .input = op.output, .output = op.activated});
}

template <class S>
void compute(const Issue& issue, const LinearBackwardInput& op) {
  if (op.d_input.num_elements() == 0) return;
  constexpr DType type = dtype_of_element<S>();
  multiply(issue, {.rows = op.d_output.shape()[0],
                   .columns = op.weight.values.shape()[1],
                   .depth = op.d_output.shape()[1],
                   .factors = type,
                   .result_type = type,
                   .a = address<S>(op.d_output),
                   .b = address<S>(op.weight.values),
                   .result = address<S>(op.d_input)});
}

template <class S>
void compute(const Issue& issue, const LinearBackwardWeight& op) {
  if (op.input.shape()[0] == 0) return;
  if (op.d_weight.num_elements() > 0)
    multiply(issue, {.rows = op.d_output.shape()[1],
                     .columns = op.input.shape()[1],
                     .depth = op.input.shape()[0],
                     .factors = dtype_of_element<S>(),
                     .result_type = DType::f32,
                     .a = address<S>(op.d_output),
                     .a_is_transposed = true,
                     .b = address<S>(op.input),
                     .addend = address<float>(op.d_weight),
                     .result = address<float>(op.d_weight)});
  if (op.d_bias && op.d_bias.num_elements() > 0) add_column_sums<S>(issue, op.d_output, op.d_bias);
}

SCALETRAIN_FOR_COMPUTE_TYPES(LinearForward)
SCALETRAIN_FOR_COMPUTE_TYPES(LinearBackwardInput)
SCALETRAIN_FOR_COMPUTE_TYPES(LinearBackwardWeight)

}  // namespace scaletrain::cuda
