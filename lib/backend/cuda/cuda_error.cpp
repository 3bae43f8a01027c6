#include "backend/cuda/cuda_error.h"

#include <fmt/format.h>
#include <unistd.h>

#include <climits>
#include <map>
#include <mutex>
#include <new>
#include <string>

#include "backend/cuda/host_calls.h"

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

std::string name_of_thread() {
  return device_of_thread < 0 ? "CUDA" : name_of_gpu(device_of_thread);
}

PeerError failure_of(const std::string& name, const std::string& words) {
  return PeerError(fmt::format("{}: {}; the kernel's log (dmesg, Xid) and nvidia-smi -q may say why", name, words));
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

// What a process sees as GPU 0 is any of its host's.
std::string name_of_gpu(int device) {
  const std::lock_guard lock(names_mutex);
  const auto name = names().find(device);
  char host[HOST_NAME_MAX + 1] = {};
  ::gethostname(host, sizeof host - 1);
  return fmt::format("GPU {}{} of {}", device, name == names().end() ? "" : fmt::format(" ({})", name->second), host);
}

PeerError gpu_failure(const std::string& words) {
  return failure_of(name_of_thread(), words);
}
PeerError gpu_failure(int device, const std::string& words) {
  return failure_of(name_of_gpu(device), words);
}

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  if (error == cudaErrorMemoryAllocation) throw std::bad_alloc();
  const std::string words = fmt::format("{} failed: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error));
  if (is_bug(error)) throw BugError(fmt::format("{}: {}", name_of_thread(), words));
  throw gpu_failure(words);
}

}  // namespace scaletrain::cuda
