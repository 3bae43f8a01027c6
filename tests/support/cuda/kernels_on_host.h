// A backend of the kernels of GPUs, run by the host's processor as cuda_language.h beside this file says. Operations
// that have no kernel yet are bugs to it.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace scaletrain {

std::unique_ptr<Backend> make_kernels_on_host(DType compute);  // f32 | bf16 | f16

}  // namespace scaletrain
