// Errors of the CUDA runtime as exceptions.
#pragma once

#include <cuda_runtime_api.h>

namespace scaletrain::cuda {

// Throws what an error of `what` is to the user of a run: std::bad_alloc where memory is not enough, a BugError where
// the call was wrong, else a PeerError: the GPU, its driver or a kernel on it failed, and a restart may succeed. `what`
// is a noun: "a copy".
void check(cudaError_t error, const char* what);

}  // namespace scaletrain::cuda
