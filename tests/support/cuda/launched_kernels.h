// Which kernels of GPUs the host has carried out in this process (host_blocks.cpp).
#pragma once

#include <string>
#include <vector>

namespace scaletrain::cuda {

// By the addresses of their functions.
std::vector<const void*> kernels_that_ran();
// By their names in the program's own table of symbols, "void scaletrain::cuda::(anonymous namespace)::fill<float,
// 4>(float*, float, long)".
std::vector<std::string> names_of_kernels_that_ran();

}  // namespace scaletrain::cuda
