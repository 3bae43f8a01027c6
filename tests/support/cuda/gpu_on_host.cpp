#include "backend/cuda/cuda_backend.h"
#include "support/cuda/fake_runtime.h"
#include "support/cuda/gpu_under_test.h"

namespace scaletrain {

bool is_gpu_missing() {
  return false;
}

std::unique_ptr<Backend> make_gpu(const CudaOptions& options) {
  return make_cuda_backend(options);
}

bool is_gpu_of_host() {
  return true;
}

std::optional<std::uint64_t> graph_launches() {
  return fake_runtime::graph_launches();
}

}  // namespace scaletrain
