// Which attention a library computes instead of the kernels of this folder, where that has been measured to be faster,
// and how its backward is cut to the memory there is.
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

  // Issue an operation, or return false: it is not one of the library's. Which it is follows from shapes, strides,
  // alignments and the operation's own workspace alone. workspace: of as many bytes as workspace.h says.
  bool issue(cudaStream_t stream, std::byte* workspace, const AttentionForward& op);
  // In the memory of op.workspace.
  bool issue(cudaStream_t stream, const AttentionBackward& op);

 private:
  std::unique_ptr<AttentionLibrary> library_;
};

}  // namespace scaletrain::cuda
