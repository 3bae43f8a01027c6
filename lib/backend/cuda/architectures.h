// Which GPUs kernels have been compiled for.
#pragma once

#include <string>
#include <string_view>

namespace scaletrain::cuda {

// Whether kernels that were compiled for these architectures run on a GPU of compute capability `sm` (90 is 9.0). As
// CMake's CUDA_ARCHITECTURES has them, with commas: "80-real,90a-real,100", machine code for one major number's GPUs
// from that minor number on ("a": for that very capability; "f": as without a letter), and, but for -real and letters,
// PTX, which the driver compiles for all that come later (CUDA C++ Programming Guide, application compatibility). Words
// that are no numbers ("native", "all") are taken to be right.
bool is_compiled_for(std::string_view architectures, int sm);

// For people: "sm_80, sm_90".
std::string architectures_text(std::string_view architectures);

}  // namespace scaletrain::cuda
