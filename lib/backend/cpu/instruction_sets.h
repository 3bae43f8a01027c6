// Which kernels the processor at hand can run.
#pragma once

#include <string_view>

#include "backend/cpu/kernels.h"

namespace scaletrain::cpu {

// name: auto (the best one) | portable | avx2 | avx512. UserError for another name, or a set that the processor or this
// build lacks.
const Kernels& choose_kernels(std::string_view name);

// What the processor must have for them, by the names that processors are described with: "avx2, fma". Empty: nothing.
std::string_view instructions_of(const Kernels& kernels);

}  // namespace scaletrain::cpu
