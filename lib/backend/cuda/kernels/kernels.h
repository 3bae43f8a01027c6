// Operations on a GPU, a file of kernels each group: what a CudaBackend issues. S: the compute type, float, bf16 or
// fp16 of CUDA. Descriptors have been checked; every view is of memory that the GPU reaches.
//
// Bits do not depend on the GPU: how work is cut follows from shapes alone, and sums are made in a fixed order. An id
// or a position that is nowhere traps: nothing of the stream runs behind it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "backend/cuda/kernels/workspace.h"
#include "backend/operations.h"

namespace scaletrain::cuda {

class FusedAttention;
class Products;

// Where an operation is issued, with scratch that all operations of a stream use in turn.
struct Issue {
  cudaStream_t stream = nullptr;
  std::byte* workspace = nullptr;  // workspace_bytes, aligned to 256
  Products* products = nullptr;
  FusedAttention* attention = nullptr;  // null: all attention is made by the kernels here
};

// elementwise.cu
template <class S>
void compute(const Issue& issue, const ActivationForward& op);
template <class S>
void compute(const Issue& issue, const ActivationBackward& op);
template <class S>
void compute(const Issue& issue, const RopeRotate& op);
template <class S>
void compute(const Issue& issue, const Add& op);
template <class S>
void compute(const Issue& issue, const Dropout& op);
template <class S>
void compute(const Issue& issue, const Scale& op);
template <class S>
void compute(const Issue& issue, const SoftCap& op);
template <class S>
void compute(const Issue& issue, const SoftCapBackward& op);
template <class S>
void compute(const Issue& issue, const Copy& op);
template <class S>
void compute(const Issue& issue, const Fill& op);

// attention_forward.cu
template <class S>
void compute(const Issue& issue, const AttentionForward& op);
// attention_backward.cu
template <class S>
void compute(const Issue& issue, const AttentionBackward& op);

// linear.cu
template <class S>
void compute(const Issue& issue, const LinearForward& op);
template <class S>
void compute(const Issue& issue, const LinearBackwardInput& op);
template <class S>
void compute(const Issue& issue, const LinearBackwardWeight& op);
template <class S>
void compute(const Issue& issue, const MatrixProduct& op);

// norm.cu
template <class S>
void compute(const Issue& issue, const NormForward& op);
template <class S>
void compute(const Issue& issue, const NormBackwardInput& op);
template <class S>
void compute(const Issue& issue, const NormBackwardWeight& op);

// squares.cu
template <class S>
void compute(const Issue& issue, const SumsOfSquares& op);

// optimizer.cu
template <class S>
void compute(const Issue& issue, const AdamWStep& op);
template <class S>
void compute(const Issue& issue, const SgdStep& op);
template <class S>
void compute(const Issue& issue, const LionStep& op);
template <class S>
void compute(const Issue& issue, const AdemamixStep& op);
template <class S>
void compute(const Issue& issue, const AdamDirection& op);
template <class S>
void compute(const Issue& issue, const MomentumDirection& op);
template <class S>
void compute(const Issue& issue, const ScaleSpans& op);
template <class S>
void compute(const Issue& issue, const RmsDirection& op);
template <class S>
void compute(const Issue& issue, const AverageStep& op);
template <class S>
void compute(const Issue& issue, const Swap& op);

// factored.cu
template <class S>
void compute(const Issue& issue, const MatrixSquares& op);
template <class S>
void compute(const Issue& issue, const FactoredDirection& op);

// optimizer_blocks.cu
template <class S>
void compute(const Issue& issue, const BlockAdamWStep& op);

// vocabulary.cu
template <class S>
void compute(const Issue& issue, const EmbeddingForward& op);
template <class S>
void compute(const Issue& issue, const EmbeddingBackward& op);
template <class S>
void compute(const Issue& issue, const CrossEntropy& op);
template <class S>
void compute(const Issue& issue, const SoftmaxStatistics& op);
template <class S>
void compute(const Issue& issue, const CrossEntropyParts& op);

}  // namespace scaletrain::cuda
