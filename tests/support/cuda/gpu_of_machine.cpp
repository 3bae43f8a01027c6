#include "support/cuda/gpu_under_test.h"
#include "support/cuda/module_of_machine.h"

namespace scaletrain {

bool is_gpu_missing() {
  return !module_of_machine();
}

std::unique_ptr<Backend> make_gpu(DType compute) {
  return CudaModule(cuda_module_path()).make_backend({.compute = compute});
}

}  // namespace scaletrain
