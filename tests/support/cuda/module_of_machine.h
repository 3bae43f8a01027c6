// The module that lies beside the test program, for tests of this machine's GPU.
#pragma once

#include <doctest/doctest.h>

#include <optional>
#include <string>

#include "backend/cuda_module.h"

namespace scaletrain {

// Nothing, where there is no GPU, or none that this process may see: the test is then skipped, which is said. A GPU
// that is there and cannot be used is no reason: it is thrown.
inline std::optional<CudaModule> module_of_machine() {
  try {
    return CudaModule(cuda_module_path());
  } catch (const NoGpuError& error) {
    MESSAGE("skipped: " << std::string(error.what()));
    return std::nullopt;
  }
}

}  // namespace scaletrain
