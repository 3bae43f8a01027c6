// Errors of the CUDA runtime as exceptions.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "base/error.h"

namespace scaletrain::cuda {

// What the calling thread asks of the CUDA runtime is of this device from now on. PeerError
void use_device(int device);
// What errors call a device from now on, beside its number and its host.
void name_device(int device, const std::string& name);

// What errors call it: "GPU 0 (NVIDIA H100 80GB HBM3 at 0000:1b:00.0) of node7".
std::string name_of_gpu(int device);
// That a GPU, its driver or what a library does on it has failed, in the words of who tells it: which GPU that is, and
// where more may be told. Without a device of the calling thread's, "CUDA" where that has none yet.
PeerError gpu_failure(const std::string& words);
PeerError gpu_failure(int device, const std::string& words);

// Throws what an error of `what` is to the user of a run: std::bad_alloc where memory is not enough, a BugError where
// the call was wrong, else a PeerError that names the thread's GPU: it, its driver or a kernel on it failed, and a
// restart may succeed. `what` is a noun: "a copy".
void check(cudaError_t error, const char* what);

}  // namespace scaletrain::cuda
