// The CUDA runtime as far as the backend asks it, on the host. A stream runs what it is given late and in bursts, on a
// thread of its own (support/ranks/late_backend.h), so that what is not ordered by events shows; the null stream runs
// it at once. Device memory is the host's.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>

#include "cuda_language.h"
#include "support/ranks/fenced_backend.h"
#include "support/ranks/late_backend.h"

namespace {

using scaletrain::Event;
using scaletrain::FencedMemory;
using scaletrain::Lateness;
using scaletrain::LateStream;

LateStream& of(cudaStream_t stream) {
  return *reinterpret_cast<LateStream*>(stream);
}
Event& of(cudaEvent_t event) {
  return *reinterpret_cast<Event*>(event);
}

std::string wanted_of_environment() {
  const char* const wanted = std::getenv("SCALETRAIN_FAKE_GPU");
  return wanted == nullptr ? "" : wanted;
}

// What a kernel threw is what a GPU calls a failed launch.
template <class Wait>
cudaError_t after_waiting(Wait&& wait) {
  try {
    wait();
    return cudaSuccess;
  } catch (...) {
    return cudaErrorLaunchFailure;
  }
}

}  // namespace

namespace scaletrain::cuda {

void run_in_turn(cudaStream_t stream, std::function<void()> function) {
  if (stream == nullptr)
    function();
  else
    of(stream).call(std::move(function));
}

}  // namespace scaletrain::cuda

extern "C" {

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  if (to == nullptr || from == nullptr) return cudaErrorInvalidValue;
  scaletrain::cuda::run_in_turn(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  if (to == nullptr) return cudaErrorInvalidValue;
  scaletrain::cuda::run_in_turn(stream, [=] { std::memset(to, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (*memory == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*memory, 0xff, bytes);
  FencedMemory::of_process().adopt(static_cast<std::byte*>(*memory), bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  FencedMemory::of_process().give_up(static_cast<const std::byte*>(memory));
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  return cudaMalloc(memory, bytes);
}
cudaError_t cudaFreeHost(void* memory) {
  return cudaFree(memory);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  static std::atomic<std::uint64_t> seed{0};
  if (flags != cudaStreamNonBlocking) return cudaErrorInvalidValue;
  *stream = reinterpret_cast<cudaStream_t>(new LateStream(seed++, Lateness::in_bursts));
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete &of(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return after_waiting([&] { of(stream).synchronize(); });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  of(stream).after(of(event));
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  of(stream).call([=] { function(data); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (flags != cudaEventDisableTiming) return cudaErrorInvalidValue;
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete &of(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  of(event) = of(stream).record();
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return of(event).is_done() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return after_waiting([&] { of(event).wait(); });
}

cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}
// The runtime's header names it by its version.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "%s", "the host");
  properties->major = 8;
  return cudaSuccess;
}
// As SCALETRAIN_FAKE_GPU says: nothing, one GPU; "no driver", "old driver", "no GPU", "broken".
cudaError_t cudaDriverGetVersion(int* version) {
  const std::string wanted = wanted_of_environment();
  *version = wanted == "no driver" ? 0 : wanted == "old driver" ? 12040 : 13000;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  const std::string wanted = wanted_of_environment();
  *count = wanted.empty() ? 1 : 0;
  if (wanted.empty()) return cudaSuccess;
  if (wanted == "no GPU") return cudaErrorNoDevice;
  return wanted == "broken" ? cudaErrorUnknown : cudaErrorInsufficientDriver;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    default:
      return "another error";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    default:
      return "another error";
  }
}

}  // extern "C"
