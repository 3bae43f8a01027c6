// The backend of an NVIDIA GPU.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/cuda_module.h"

namespace scaletrain {

// Without using it. UserError for a GPU that is too old or that there are no kernels for.
DeviceFacts look_at_cuda_device(int device);

// Kernels as backend/cuda/kernels has them; matrix products are cuBLASLt's. UserError for a GPU that is too old or
// that there are no kernels for; PeerError where the GPU or its driver fails.
std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options);

}  // namespace scaletrain
