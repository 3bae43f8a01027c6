#include "backend/cuda/products.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "backend/cuda/cuda_error.h"
#include "base/error.h"

namespace scaletrain::cuda {

namespace {

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  if (status == CUBLAS_STATUS_ALLOC_FAILED) throw std::bad_alloc();
  const std::string text =
      fmt::format("cuBLASLt: {} failed: {} ({})", what, cublasLtGetStatusString(status), cublasLtGetStatusName(status));
  if (status == CUBLAS_STATUS_INVALID_VALUE || status == CUBLAS_STATUS_NOT_SUPPORTED) throw BugError(text);
  throw gpu_failure(text);
}

cudaDataType data_type(DType type) {
  switch (type) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    default:
      throw BugError("cuBLASLt multiplies no " + std::string(to_text(type)));
  }
}

// The largest power of two, up to what kernels can make use of, that an address is a multiple of.
unsigned alignment_of(const void* address) {
  constexpr std::uintptr_t most = 256;
  const auto place = reinterpret_cast<std::uintptr_t>(address) | most;
  return static_cast<unsigned>(place & (~place + 1));
}

// Column by column, as cuBLASLt has matrices: a matrix of ours is its own transpose there.
class Layout {
 public:
  Layout(DType type, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
    check(cublasLtMatrixLayoutCreate(&layout_, data_type(type), static_cast<std::uint64_t>(rows),
                                     static_cast<std::uint64_t>(columns), stride == 0 ? rows : stride),
          "a matrix");
  }
  ~Layout() { cublasLtMatrixLayoutDestroy(layout_); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  cublasLtMatrixLayout_t get() const { return layout_; }

 private:
  cublasLtMatrixLayout_t layout_ = nullptr;
};

class Operation {
 public:
  explicit Operation(cublasComputeType_t compute) {
    check(cublasLtMatmulDescCreate(&operation_, compute, CUDA_R_32F), "a product");
  }
  ~Operation() { cublasLtMatmulDescDestroy(operation_); }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    check(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof value), "a product's attribute");
  }
  cublasLtMatmulDesc_t get() const { return operation_; }

 private:
  cublasLtMatmulDesc_t operation_ = nullptr;
};

class Preference {
 public:
  Preference() { check(cublasLtMatmulPreferenceCreate(&preference_), "a preference"); }
  ~Preference() { cublasLtMatmulPreferenceDestroy(preference_); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
  template <class Value>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, const Value& value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference_, attribute, &value, sizeof value), "a preference");
  }
  cublasLtMatmulPreference_t get() const { return preference_; }

 private:
  cublasLtMatmulPreference_t preference_ = nullptr;
};

Layout factor(DType type, bool is_transposed, std::int64_t rows, std::int64_t columns, std::int64_t stride = 0) {
  return is_transposed ? Layout(type, rows, columns, stride) : Layout(type, columns, rows, stride);
}

}  // namespace

// The result's transpose is b's transpose times a's: b comes first.
struct Products::Choice {
  Choice(const Product& p, cublasComputeType_t compute)
      : operation(compute),
        first(factor(p.factors, p.b_is_transposed, p.depth, p.columns)),
        second(factor(p.factors, p.a_is_transposed, p.rows, p.depth, p.a_stride)),
        result(p.result_type, p.columns, p.rows, p.result_stride) {
    operation.set(CUBLASLT_MATMUL_DESC_TRANSA, p.b_is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    operation.set(CUBLASLT_MATMUL_DESC_TRANSB, p.a_is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (p.bias != nullptr) {
      operation.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      operation.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(p.result_type));
    }
  }

  Operation operation;
  Layout first, second, result;
  cublasLtMatmulAlgo_t algorithm{};
  std::size_t workspace_bytes = 0;
};

Products::Products(const CudaOptions& options)
    : compute_(options.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F) {
  SCALETRAIN_CHECK(!options.tf32 || options.compute == DType::f32);
  check(cublasLtCreate(&handle_), "its start");
}

Products::~Products() {
  choices_.clear();
  cublasLtDestroy(handle_);
}

Products::Choice& Products::choice_for(const Product& p, std::size_t workspace_bytes) {
  const unsigned of_a = alignment_of(p.a);
  const unsigned of_b = alignment_of(p.b);
  const unsigned of_addend = alignment_of(p.addend != nullptr ? p.addend : p.result);
  const unsigned of_result = alignment_of(p.result);
  const Key key(p.rows, p.columns, p.depth, p.a_stride, p.result_stride, p.factors, p.result_type, p.a_is_transposed,
                p.b_is_transposed, p.bias != nullptr, p.addend != nullptr, of_a, of_b, of_addend, of_result,
                alignment_of(p.bias));
  std::unique_ptr<Choice>& kept = choices_[key];
  if (kept) return *kept;
  auto choice = std::make_unique<Choice>(p, compute_);
  if (p.bias != nullptr) choice->operation.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  Preference preference;
  // What is summed in place has no fixed order.
  preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                 static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, of_b);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, of_a);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, of_addend);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, of_result);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, choice->operation.get(), choice->first.get(), choice->second.get(),
                                     choice->result.get(), choice->result.get(), preference.get(), 1, &found, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED ||
      (status == CUBLAS_STATUS_SUCCESS && (count == 0 || found.state != CUBLAS_STATUS_SUCCESS)))
    throw BugError(fmt::format("cuBLASLt has no product of {} [{} x {}] by [{} x {}]", to_text(p.factors), p.rows,
                               p.depth, p.depth, p.columns));
  check(status, "the choice of a kernel");
  choice->algorithm = found.algo;
  choice->workspace_bytes = found.workspaceSize;
  kept = std::move(choice);
  return *kept;
}

void Products::issue(cudaStream_t stream, std::byte* workspace, std::size_t workspace_bytes, const Product& p) {
  SCALETRAIN_CHECK(p.rows > 0 && p.columns > 0 && p.depth > 0);
  Choice& choice = choice_for(p, workspace_bytes);
  if (p.bias != nullptr) choice.operation.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  const float of_addend = p.addend != nullptr ? p.addend_factor : 0.0F;
  check(cublasLtMatmul(handle_, choice.operation.get(), &p.factor, p.b, choice.first.get(), p.a, choice.second.get(),
                       &of_addend, p.addend != nullptr ? p.addend : p.result, choice.result.get(), p.result,
                       choice.result.get(), &choice.algorithm, workspace, choice.workspace_bytes, stream),
        "a product");
}

}  // namespace scaletrain::cuda
