#include "backend/cpu/half_products.h"

#include <algorithm>

#include "backend/cpu/sgemm.h"
#include "base/error.h"

namespace scaletrain::cpu {

namespace {

// Rows [row, row + rows) of what lies in memory, columns [column, column + columns), as floats; those of floats as they
// lie.
template <class S>
ConstMatrix floats_of(const TypedKernels<S>& kernels, const MatrixOf<S>& matrix, std::int64_t row, std::int64_t rows,
                      std::int64_t column, std::int64_t columns, float* block) {
  for (std::int64_t r = 0; r < rows; ++r)
    kernels.to_floats(matrix.data + (row + r) * matrix.stride + column, block + r * columns,
                      static_cast<std::size_t>(columns));
  return {block, columns, matrix.transposed};
}
template <class S>
ConstMatrix floats_of(const TypedKernels<S>&, const MatrixOf<float>& matrix, std::int64_t row, std::int64_t,
                      std::int64_t column, std::int64_t, float*) {
  return {matrix.data + row * matrix.stride + column, matrix.stride, matrix.transposed};
}

// An operand of `outer` rows (or columns, for b) and a part of k.
template <class S, class T>
ConstMatrix part_of_k(const TypedKernels<S>& kernels, const MatrixOf<T>& matrix, bool k_is_inner, std::int64_t outer,
                      std::int64_t k, std::int64_t count, float* block) {
  return k_is_inner ? floats_of(kernels, matrix, 0, outer, k, count, block)
                    : floats_of(kernels, matrix, k, count, 0, outer, block);
}

}  // namespace

template <class A, class S>
void wide_product(const TypedKernels<S>& kernels, std::byte* scratch, const WideProduct<A, S>& p) {
  SCALETRAIN_CHECK_LE(p.m, max_wide_rows);
  SCALETRAIN_CHECK_LE(p.n, max_wide_columns);
  auto* a_block = reinterpret_cast<float*>(scratch);
  float* b_block = a_block + max_wide_rows * wide_k;
  std::int64_t k = 0;
  do {  // once at least: an empty sum is beta · c
    const std::int64_t count = std::min(wide_k, p.k - k);
    sgemm({.m = p.m,
           .n = p.n,
           .k = count,
           .alpha = p.alpha,
           .a = part_of_k(kernels, p.a, !p.a.transposed, p.m, k, count, a_block),
           .b = part_of_k(kernels, p.b, p.b.transposed, p.n, k, count, b_block),
           .beta = k == 0 ? p.beta : 1.0F,
           .c = p.c,
           .c_stride = p.c_stride});
    k += wide_k;
  } while (k < p.k);
}

template void wide_product(const TypedKernels<Bf16>&, std::byte*, const WideProduct<Bf16, Bf16>&);
template void wide_product(const TypedKernels<F16>&, std::byte*, const WideProduct<F16, F16>&);
template void wide_product(const TypedKernels<Bf16>&, std::byte*, const WideProduct<float, Bf16>&);
template void wide_product(const TypedKernels<F16>&, std::byte*, const WideProduct<float, F16>&);

}  // namespace scaletrain::cpu
