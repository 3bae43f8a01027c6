#include "backend/cuda/cuda_backend.h"
#include "support/cuda/gpu_under_test.h"

namespace scaletrain {

bool is_gpu_missing() {
  return false;
}

std::unique_ptr<Backend> make_gpu(DType compute) {
  return make_cuda_backend({.compute = compute});
}

}  // namespace scaletrain
