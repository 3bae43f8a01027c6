#include "backend/cuda/cuda_error.h"

#include <fmt/format.h>

#include <new>

#include "base/error.h"

namespace scaletrain::cuda {

namespace {

// What says nothing of the GPU or its driver but of how it was asked.
bool is_bug(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidPitchValue:
    case cudaErrorInvalidMemcpyDirection:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorInvalidDevicePointer:
    case cudaErrorLaunchOutOfResources:
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureMerge:
    case cudaErrorStreamCaptureUnmatched:
    case cudaErrorStreamCaptureUnjoined:
    case cudaErrorStreamCaptureIsolation:
    case cudaErrorStreamCaptureImplicit:
    case cudaErrorStreamCaptureWrongThread:
      return true;
    default:
      return false;
  }
}

}  // namespace

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  if (error == cudaErrorMemoryAllocation) throw std::bad_alloc();
  const std::string text =
      fmt::format("CUDA: {} failed: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error));
  if (is_bug(error)) throw BugError(text);
  throw PeerError(text);
}

}  // namespace scaletrain::cuda
