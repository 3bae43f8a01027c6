// Which attention a library computes instead of the kernels of this folder: the forward, where it has been measured to
// be faster. Its deterministic backward, in parts that fit the memory there is, was not (an H100, cuDNN 9.14).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "backend/cuda/attention_library.h"
#include "backend/operations.h"

namespace scaletrain::cuda {

// By one thread at a time.
class FusedAttention {
 public:
  explicit FusedAttention(std::unique_ptr<AttentionLibrary> library) : library_(std::move(library)) {}
  std::string library_name() const { return library_->name(); }

  // Issues an operation, or returns false: it is not one of the library's. Which it is follows from shapes, strides and
  // alignments alone. workspace: of as many bytes as workspace.h says.
  bool issue(cudaStream_t stream, std::byte* workspace, const AttentionForward& op);

 private:
  std::unique_ptr<AttentionLibrary> library_;
};

}  // namespace scaletrain::cuda
