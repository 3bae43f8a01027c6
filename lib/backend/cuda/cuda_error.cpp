#include "backend/cuda/cuda_error.h"

#include <fmt/format.h>
#include <unistd.h>

#include <climits>
#include <map>
#include <mutex>
#include <new>
#include <string>

#include "backend/cuda/host_calls.h"
#include "base/error.h"

namespace scaletrain::cuda {

namespace {

// What says nothing of the GPU or its driver but of how it was asked.
bool is_bug(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidPitchValue:
    case cudaErrorInvalidMemcpyDirection:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorInvalidDevicePointer:
    case cudaErrorLaunchOutOfResources:
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureMerge:
    case cudaErrorStreamCaptureUnmatched:
    case cudaErrorStreamCaptureUnjoined:
    case cudaErrorStreamCaptureIsolation:
    case cudaErrorStreamCaptureImplicit:
    case cudaErrorStreamCaptureWrongThread:
      return true;
    default:
      return false;
  }
}

thread_local int device_of_thread = -1;

std::mutex names_mutex;
std::map<int, std::string>& names() {
  static std::map<int, std::string> of_devices;
  return of_devices;
}

// What a process sees as GPU 0 is any of its host's: "GPU 0 (NVIDIA H100 80GB HBM3 at 0000:1b:00.0) of node7", of the
// thread.
std::string name_of_gpu() {
  if (device_of_thread < 0) return "CUDA";
  const std::lock_guard lock(names_mutex);
  const auto name = names().find(device_of_thread);
  char host[HOST_NAME_MAX + 1] = {};
  ::gethostname(host, sizeof host - 1);
  return fmt::format("GPU {}{} of {}", device_of_thread,
                     name == names().end() ? "" : fmt::format(" ({})", name->second), host);
}

}  // namespace

void use_device(int device) {
  if (HostCalls::is_own_thread()) throw BugError("a function of a stream uses the GPU");
  const cudaError_t error = cudaSetDevice(device);
  device_of_thread = error == cudaSuccess ? device : -1;
  check(error, "the choice of a GPU");
}

void name_device(int device, const std::string& name) {
  const std::lock_guard lock(names_mutex);
  names()[device] = name;
}

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  if (error == cudaErrorMemoryAllocation) throw std::bad_alloc();
  const std::string text =
      fmt::format("{}: {} failed: {} ({})", name_of_gpu(), what, cudaGetErrorString(error), cudaGetErrorName(error));
  if (is_bug(error)) throw BugError(text);
  throw PeerError(text + "; the kernel's log (dmesg, Xid) and nvidia-smi -q may say why");
}

}  // namespace scaletrain::cuda
