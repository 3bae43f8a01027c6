// cuBLASLt as far as products.cpp asks it, on the host: products by the definition, column by column as its
// documentation has matrices, behind its documented rules for their arguments. What is not asked for yet is refused.
//
// TF32: CUBLAS_COMPUTE_32F_FAST_TF32 allows it to convert factors and does not say how. To the nearest, ties away from
// zero (cvt.rna.tf32.f32 of the PTX ISA), a factor is off by 2^-11 of itself at most; where a kernel gives floats to
// the tensor cores as they are, those leave out the last 13 bits, and it is up to 2^-10. Here they are left out.
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cuda_language.h"
#include "support/cuda/fake_machine.h"

namespace {

struct FakeLayout {
  cudaDataType type;
  std::uint64_t rows, columns;
  std::int64_t leading;
};
struct FakeOperation {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cublasOperation_t of_a = CUBLAS_OP_N;
  cublasOperation_t of_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  cudaDataType bias_type = CUDA_R_32F;
};
struct FakePreference {
  std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint64_t workspace = 0;
  std::uint32_t alignments[4] = {256, 256, 256, 256};
};
// What a choice was made for.
struct FakeAlgorithm {
  std::uint32_t alignments[4];
  std::uint64_t workspace;
};
static_assert(sizeof(FakeAlgorithm) <= sizeof(cublasLtMatmulAlgo_t));

// A kernel of sm_90 asks for some.
constexpr std::uint64_t workspace_of_choice = 4096;

const FakeLayout& of(cublasLtMatrixLayout_t layout) {
  return *reinterpret_cast<const FakeLayout*>(layout);
}
FakeOperation& of(cublasLtMatmulDesc_t operation) {
  return *reinterpret_cast<FakeOperation*>(operation);
}
FakePreference& of(cublasLtMatmulPreference_t preference) {
  return *reinterpret_cast<FakePreference*>(preference);
}

template <class Value>
bool take(Value& value, const void* buffer, std::size_t bytes) {
  if (bytes != sizeof value) return false;
  std::memcpy(&value, buffer, bytes);
  return true;
}
cublasStatus_t status_of(bool is_valid) {
  return is_valid ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

bool is_half(cudaDataType type) {
  return type == CUDA_R_16BF || type == CUDA_R_16F;
}

float read(cudaDataType type, const void* data, std::uint64_t at) {
  if (type == CUDA_R_16BF) return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]);
  if (type == CUDA_R_16F) return __half2float(static_cast<const __half*>(data)[at]);
  return static_cast<const float*>(data)[at];
}
void write(cudaDataType type, void* data, std::uint64_t at, float value) {
  if (type == CUDA_R_16BF)
    static_cast<__nv_bfloat16*>(data)[at] = __float2bfloat16_rn(value);
  else if (type == CUDA_R_16F)
    static_cast<__half*>(data)[at] = __float2half_rn(value);
  else
    static_cast<float*>(data)[at] = value;
}

float to_tf32(float value) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & ~std::uint32_t{0x1fff});
}

// Types as the table of cublasLtMatmul has them for the two ways to compute, shapes that fit, leading dimensions.
bool fits(const FakeOperation& operation, const FakeLayout& a, const FakeLayout& b, const FakeLayout& c,
          const FakeLayout& d) {
  for (const FakeLayout* layout : {&a, &b, &c, &d})
    if (layout->rows == 0 || layout->columns == 0 || layout->leading < static_cast<std::int64_t>(layout->rows))
      return false;
  const std::uint64_t rows = operation.of_a == CUBLAS_OP_N ? a.rows : a.columns;
  const std::uint64_t depth = operation.of_a == CUBLAS_OP_N ? a.columns : a.rows;
  const std::uint64_t depth_of_b = operation.of_b == CUBLAS_OP_N ? b.rows : b.columns;
  const std::uint64_t columns = operation.of_b == CUBLAS_OP_N ? b.columns : b.rows;
  if (depth != depth_of_b || d.rows != rows || d.columns != columns || c.rows != rows || c.columns != columns)
    return false;
  if (a.type != b.type || c.type != d.type) return false;
  if (operation.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && a.type != CUDA_R_32F) return false;
  if (is_half(a.type) ? d.type != a.type && d.type != CUDA_R_32F : a.type != CUDA_R_32F || d.type != CUDA_R_32F)
    return false;
  if (operation.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return true;
  return operation.epilogue == CUBLASLT_EPILOGUE_BIAS && operation.bias != nullptr && operation.bias_type == d.type;
}

std::vector<float> values_of(const FakeLayout& layout, const void* data, bool by_columns) {
  std::vector<float> values;
  const std::uint64_t outer = by_columns ? layout.columns : layout.rows;
  const std::uint64_t inner = by_columns ? layout.rows : layout.columns;
  for (std::uint64_t i = 0; i < outer; ++i)
    for (std::uint64_t j = 0; j < inner; ++j) {
      const std::uint64_t row = by_columns ? j : i;
      const std::uint64_t column = by_columns ? i : j;
      values.push_back(read(layout.type, data, column * static_cast<std::uint64_t>(layout.leading) + row));
    }
  return values;
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new int(0));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<int*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion() {
  return 130000;
}
const char* cublasLtGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_INVALID_VALUE      ? "CUBLAS_STATUS_INVALID_VALUE"
         : status == CUBLAS_STATUS_EXECUTION_FAILED ? "CUBLAS_STATUS_EXECUTION_FAILED"
                                                    : "another status";
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_EXECUTION_FAILED ? "the function failed to launch on the GPU" : "an invalid value";
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new FakeLayout{type, rows, columns, leading});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<FakeLayout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if ((compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_FAST_TF32) || scale != CUDA_R_32F)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  *operation = reinterpret_cast<cublasLtMatmulDesc_t>(new FakeOperation{.compute = compute});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete &of(operation);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  FakeOperation& set = of(operation);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return status_of(take(set.of_a, value, bytes));
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return status_of(take(set.of_b, value, bytes));
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return status_of(take(set.epilogue, value, bytes));
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return status_of(take(set.bias, value, bytes));
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return status_of(take(set.bias_type, value, bytes));
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new FakePreference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete &of(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
  FakePreference& set = of(preference);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return status_of(take(set.reductions, value, bytes));
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return status_of(take(set.workspace, value, bytes));
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return status_of(take(set.alignments[0], value, bytes));
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return status_of(take(set.alignments[1], value, bytes));
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return status_of(take(set.alignments[2], value, bytes));
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return status_of(take(set.alignments[3], value, bytes));
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

// In place means by atomics.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int asked,
                                              cublasLtMatmulHeuristicResult_t found[], int* count) {
  *count = 0;
  if (!fits(of(operation), of(a), of(b), of(c), of(d)) || asked < 1) return CUBLAS_STATUS_INVALID_VALUE;
  const FakePreference& wanted = of(preference);
  if ((wanted.reductions & (CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)) != 0)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  FakeAlgorithm choice{};
  std::copy_n(wanted.alignments, 4, choice.alignments);
  choice.workspace = std::min(wanted.workspace, workspace_of_choice);
  std::memcpy(&found[0].algo, &choice, sizeof choice);
  found[0].workspaceSize = choice.workspace;
  found[0].state = CUBLAS_STATUS_SUCCESS;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation_of_call, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t of_a, const void* b, cublasLtMatrixLayout_t of_b,
                              const void* beta, const void* c, cublasLtMatrixLayout_t of_c, void* d,
                              cublasLtMatrixLayout_t of_d, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  const FakeOperation operation = of(operation_of_call);
  const std::array<FakeLayout, 4> layouts = {of(of_a), of(of_b), of(of_c), of(of_d)};
  if (!fits(operation, layouts[0], layouts[1], layouts[2], layouts[3])) return CUBLAS_STATUS_INVALID_VALUE;
  if (layouts[2].leading != layouts[3].leading && c == d) return CUBLAS_STATUS_INVALID_VALUE;
  FakeAlgorithm choice{};
  std::memcpy(&choice, algorithm, sizeof choice);
  const void* const operands[4] = {a, b, c, d};
  for (int i = 0; i < 4; ++i)
    if (operands[i] == nullptr || reinterpret_cast<std::uintptr_t>(operands[i]) % choice.alignments[i] != 0)
      return CUBLAS_STATUS_INVALID_VALUE;
  if (workspace_bytes < choice.workspace || reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0)
    return CUBLAS_STATUS_INVALID_VALUE;
  int device = 0;
  cudaGetDevice(&device);
  if (scaletrain::fake_machine::has_failed(device, "products")) return CUBLAS_STATUS_EXECUTION_FAILED;
  const float of_product = *static_cast<const float*>(alpha);
  const float of_addend = *static_cast<const float*>(beta);
  scaletrain::cuda::run_in_turn(stream, [=] {
    const FakeLayout& result = layouts[3];
    if (choice.workspace > 0) std::memset(workspace, 0xff, choice.workspace);
    // op(a) by rows, op(b) by columns.
    std::vector<float> rows = values_of(layouts[0], a, operation.of_a != CUBLAS_OP_N);
    std::vector<float> columns = values_of(layouts[1], b, operation.of_b == CUBLAS_OP_N);
    if (operation.compute == CUBLAS_COMPUTE_32F_FAST_TF32)
      for (std::vector<float>* factors : {&rows, &columns})
        std::transform(factors->begin(), factors->end(), factors->begin(), to_tf32);
    const std::uint64_t depth = rows.size() / result.rows;
    for (std::uint64_t column = 0; column < result.columns; ++column)
      for (std::uint64_t row = 0; row < result.rows; ++row) {
        float sum = 0;
        for (std::uint64_t k = 0; k < depth; ++k) sum += rows[row * depth + k] * columns[column * depth + k];
        sum *= of_product;
        // As some of its kernels do: what is added comes to a number of the result's type.
        const auto rounded = [&result](float value) {
          std::array<std::byte, sizeof(float)> place{};
          write(result.type, place.data(), 0, value);
          return read(result.type, place.data(), 0);
        };
        if (of_addend != 0.0F || operation.epilogue == CUBLASLT_EPILOGUE_BIAS) sum = rounded(sum);
        if (operation.epilogue == CUBLASLT_EPILOGUE_BIAS)
          sum = rounded(sum + read(operation.bias_type, operation.bias, row));
        if (of_addend != 0.0F)
          sum += of_addend * read(layouts[2].type, c, column * static_cast<std::uint64_t>(layouts[2].leading) + row);
        write(result.type, d, column * static_cast<std::uint64_t>(result.leading) + row, sum);
      }
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
