// Errors of the CUDA runtime as exceptions.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace scaletrain::cuda {

// What the calling thread asks of the CUDA runtime is of this device from now on. PeerError
void use_device(int device);
// What errors call a device from now on, beside its number and its host.
void name_device(int device, const std::string& name);

// Throws what an error of `what` is to the user of a run: std::bad_alloc where memory is not enough, a BugError where
// the call was wrong, else a PeerError that names the thread's GPU: it, its driver or a kernel on it failed, and a
// restart may succeed. `what` is a noun: "a copy".
void check(cudaError_t error, const char* what);

}  // namespace scaletrain::cuda
