// A backend of the kernels of GPUs, run by the host's processor as cuda_language.h beside this file says, on memory of
// the host and at once: what the parity suite compares.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/cuda_module.h"

namespace scaletrain {

std::unique_ptr<Backend> make_kernels_on_host(const CudaOptions& options);
// With the library of fake_cudnn.cpp for the attention that it takes.
std::unique_ptr<Backend> make_kernels_with_library_on_host(DType compute);  // bf16 | f16
// How often that library has computed attention.
int attention_runs_of_library();

}  // namespace scaletrain
