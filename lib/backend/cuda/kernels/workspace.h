// The scratch that all operations of a stream use in turn.
#pragma once

#include <cstddef>

namespace scaletrain::cuda {

// What cuBLASLt's kernels of sm_90 ask for.
inline constexpr std::size_t workspace_bytes = std::size_t{32} << 20;

}  // namespace scaletrain::cuda
