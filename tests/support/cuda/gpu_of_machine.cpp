#include "backend/cuda_module.h"
#include "base/error.h"
#include "support/cuda/gpu_under_test.h"

namespace scaletrain {

namespace {

CudaModule load_module() {
  return CudaModule(cuda_module_path());
}

}  // namespace

std::string missing_gpu() {
  try {
    load_module();
    return "";
  } catch (const NoGpuError& error) {
    return error.what();
  }
}

std::unique_ptr<Backend> make_gpu(DType compute) {
  return load_module().make_backend({.compute = compute});
}

bool has_reachable_memory() {
  return false;
}

}  // namespace scaletrain
