// Matrix products on a GPU, those of linear maps and others: what cuBLASLt is asked for, and nothing else of it.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "backend/cuda_module.h"
#include "tensor/dtype.h"

namespace scaletrain::cuda {

// result[rows, columns] = factor · a · b (+ bias) (+ addend_factor · addend), all row by row, without gaps where no
// stride is given: summed in f32 (of f32: by f32 products, and by TF32 only where CudaOptions ask for it).
struct Product {
  std::int64_t rows = 0, columns = 0, depth = 0;
  DType factors = DType::f32;      // of a and b
  DType result_type = DType::f32;  // of the result, the addend and the bias
  const void* a = nullptr;         // [rows, depth], or [depth, rows]
  bool a_is_transposed = false;
  std::int64_t a_stride = 0;  // elements between rows; 0: no gaps
  const void* b = nullptr;    // [depth, columns], or [columns, depth]
  bool b_is_transposed = false;
  float factor = 1.0F;
  const void* bias = nullptr;    // [columns], or null
  const void* addend = nullptr;  // [rows, columns], or null; may be the result, or a or b
  float addend_factor = 1.0F;
  void* result = nullptr;
  std::int64_t result_stride = 0;  // as of a; the addend's too
};

// Of one GPU and one way to multiply f32; by one thread at a time. Which kernel makes a product is asked of cuBLASLt
// once for each kind (shapes, types, alignments) and kept, so that a run's steps use the same one. Only kernels with
// one order of sums are eligible.
class Products {
 public:
  explicit Products(const CudaOptions& options);  // PeerError
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // Issues a product; the workspace, aligned to 256, is the stream's. No extent may be zero. BugError if cuBLASLt has
  // no kernel for it.
  void issue(cudaStream_t stream, std::byte* workspace, std::size_t workspace_bytes, const Product& product);

 private:
  struct Choice;
  // Everything that a choice depends on.
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, DType, DType, bool, bool,
                         bool, bool, unsigned, unsigned, unsigned, unsigned, unsigned>;

  Choice& choice_for(const Product& product, std::size_t workspace_bytes);

  const cublasComputeType_t compute_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, std::unique_ptr<Choice>> choices_;
};

}  // namespace scaletrain::cuda
