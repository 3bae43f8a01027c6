// The scratch that all operations of a stream use in turn.
#pragma once

#include <cstddef>

#include "backend/cuda_module.h"

namespace scaletrain::cuda {

inline constexpr std::size_t workspace_bytes = cuda_workspace_bytes;

}  // namespace scaletrain::cuda
