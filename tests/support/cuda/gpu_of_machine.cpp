#include "support/cuda/gpu_under_test.h"
#include "support/cuda/module_of_machine.h"

namespace scaletrain {

bool is_gpu_missing() {
  return !module_of_machine();
}

std::unique_ptr<Backend> make_gpu(const CudaOptions& options) {
  return CudaModule(cuda_module_path()).make_backend(options);
}

bool is_gpu_of_host() {
  return false;
}

std::optional<std::uint64_t> graph_launches() {
  return std::nullopt;
}

}  // namespace scaletrain
