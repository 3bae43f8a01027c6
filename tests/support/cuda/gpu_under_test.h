// The GPU that a test trains on: one that the host carries out (gpu_on_host.cpp), or that of this machine by its module
// (gpu_of_machine.cpp). A test program is linked with one of them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "backend/cuda_module.h"

namespace scaletrain {

// Whether there is none, as module_of_machine() says.
bool is_gpu_missing();
std::unique_ptr<Backend> make_gpu(const CudaOptions& options);
inline std::unique_ptr<Backend> make_gpu(DType compute) {
  return make_gpu(CudaOptions{.compute = compute});
}
// Whether the host carries it out, for which everything takes long.
bool is_gpu_of_host();
// How many CUDA graphs have been launched; nothing where nobody counts them.
std::optional<std::uint64_t> graph_launches();

}  // namespace scaletrain
