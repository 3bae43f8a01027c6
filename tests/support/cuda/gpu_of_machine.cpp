#include "backend/cuda_module.h"
#include "base/error.h"
#include "support/cuda/gpu_under_test.h"
#include "support/cuda/reachable_backend.h"

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
  } catch (const UserError& error) {
    return error.what();
  }
}

std::unique_ptr<Backend> make_gpu(DType compute) {
  return load_module().make_backend({.compute = compute});
}

std::unique_ptr<Backend> make_reachable_gpu(DType compute) {
  return std::make_unique<ReachableBackend>(make_gpu(compute));
}

}  // namespace scaletrain
