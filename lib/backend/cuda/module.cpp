// What the program finds in the module.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstdlib>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda_module.h"

namespace scaletrain {

namespace {

// 13010 is CUDA 13.1.
std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

CudaCount without_driver() {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
    return {.obstacle = "no NVIDIA driver is installed: install one of version 580 or later", .is_absent = true};
  return {.obstacle =
              fmt::format("the NVIDIA driver is made for CUDA {}, and {} is needed: install version 580 or later",
                          version_text(driver), version_text(CUDART_VERSION / 1000 * 1000))};
}

CudaCount without_visible() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return {.obstacle = "the driver finds no GPU: see what nvidia-smi says", .is_absent = true};
  return {
      .obstacle = fmt::format("CUDA_VISIBLE_DEVICES is '{}', which leaves no GPU to see: unset it", visible),
      .is_absent = true,
  };
}

// Streams that share one of the GPU's queues wait for each other's work, also where one waits for the host: as many
// queues as there may be, unless the user has said otherwise. Read by the driver at its start.
void ask_for_queues() {
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

CudaCount count_devices() {
  ask_for_queues();
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  switch (error) {
    case cudaSuccess:
      return count == 0 ? without_visible() : CudaCount{.devices = count};
    case cudaErrorInsufficientDriver:
      return without_driver();
    case cudaErrorNoDevice:
      return without_visible();
    default:
      return {.obstacle =
                  fmt::format("the driver cannot be used ({}): see what nvidia-smi says", cudaGetErrorString(error))};
  }
}

constexpr CudaModuleEntry entry = {.interface = SCALETRAIN_INTERFACE,
                                   .count_devices = count_devices,
                                   .look_at_device = look_at_cuda_device,
                                   .make_backend = make_cuda_backend};

}  // namespace

}  // namespace scaletrain

extern "C" const scaletrain::CudaModuleEntry* scaletrain_cuda_module() {
  return &scaletrain::entry;
}
