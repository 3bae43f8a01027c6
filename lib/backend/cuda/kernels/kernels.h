// Operations on a GPU, a file of kernels each group: what a CudaBackend issues. S: the compute type, float, bf16 or
// fp16 of CUDA. Descriptors have been checked; every view is of memory that the GPU reaches.
//
// Bits do not depend on the GPU: how work is cut follows from shapes alone, and sums are made in a fixed order. An id
// or a position that is nowhere traps: nothing of the stream runs behind it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/operations.h"
#include "cuda_language.h"

namespace scaletrain::cuda {

// Where an operation is issued, with scratch that all operations of a stream use in turn.
struct Issue {
  cudaStream_t stream = nullptr;
  std::byte* workspace = nullptr;  // workspace_bytes, aligned to 256
};
inline constexpr std::size_t workspace_bytes = std::size_t{8} << 20;

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
void compute(const Issue& issue, const Copy& op);
template <class S>
void compute(const Issue& issue, const Fill& op);

// attention.cu
template <class S>
void compute(const Issue& issue, const AttentionForward& op);
template <class S>
void compute(const Issue& issue, const AttentionBackward& op);

// norm.cu
template <class S>
void compute(const Issue& issue, const NormForward& op);
template <class S>
void compute(const Issue& issue, const NormBackwardInput& op);
template <class S>
void compute(const Issue& issue, const NormBackwardWeight& op);

// optimizer.cu
template <class S>
void compute(const Issue& issue, const SumOfSquares& op);
template <class S>
void compute(const Issue& issue, const AdamWStep& op);
template <class S>
void compute(const Issue& issue, const SgdStep& op);

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
