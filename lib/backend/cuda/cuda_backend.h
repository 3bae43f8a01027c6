// The backend of an NVIDIA GPU.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/cuda_module.h"

namespace scaletrain {

// Of the calling thread's device from now on, which becomes options.device. Kernels as backend/cuda/kernels has them;
// matrix products are cuBLASLt's. PeerError naming the GPU where it or its driver fails.
std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options);

}  // namespace scaletrain
