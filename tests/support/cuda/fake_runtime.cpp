// The CUDA runtime as far as the backend asks it, on the host. A stream runs what it is given late and in bursts, on a
// thread of its own (support/ranks/late_backend.h), so that what is not ordered by events shows; the null stream runs
// it at once. Device memory is beyond the host's reach while no stream runs (fake_memory.h).
//
// What a driver may wait for the whole device in does so here: whoever gets or gives back memory, or launches a kernel
// for the first time without CUDA_MODULE_LOADING=EAGER, while a stream of that GPU waits for somebody who waits for him
// hangs. Such waits are counted (fake_runtime.h).
//
// While a thread captures a stream, that stream runs nothing: what it is given becomes the graph's, to be run in this
// order at each launch. What CUDA does not let a thread do then fails as it would, and what it would let it do but
// nobody does here fails too.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cuda_language.h"
#include "support/cuda/fake_machine.h"
#include "support/cuda/fake_memory.h"
#include "support/cuda/fake_runtime.h"
#include "support/ranks/fenced_backend.h"
#include "support/ranks/late_backend.h"

namespace {

using scaletrain::Event;
using scaletrain::FencedMemory;
using scaletrain::Lateness;
using scaletrain::LateStream;
using scaletrain::cuda::FakeMemory;
using namespace scaletrain::fake_machine;

// A stream lives as long as an event of it, which others may still be waiting for when it has been destroyed.
using FakeStream = std::shared_ptr<LateStream>;
struct FakeEvent {
  Event moment{};
  FakeStream stream{};
};

FakeStream& shared(cudaStream_t stream) {
  return *reinterpret_cast<FakeStream*>(stream);
}
LateStream& of(cudaStream_t stream) {
  return *shared(stream);
}
FakeEvent& of(cudaEvent_t event) {
  return *reinterpret_cast<FakeEvent*>(event);
}

// A function that a stream calls may not use the runtime.
thread_local bool is_in_host_function = false;
#define REFUSE_IN_HOST_FUNCTION \
  if (is_in_host_function) return cudaErrorNotPermitted

thread_local int device_of_thread = 0;
#define REFUSE_WHERE_FAILED(what) \
  if (has_failed(device_of_thread, what)) return cudaErrorLaunchFailure

// What a thread captures, if it does: of cudaStreamCaptureModeThreadLocal.
using Nodes = std::vector<std::function<void()>>;
struct Capture {
  cudaStream_t stream = nullptr;
  Nodes nodes{};
  bool is_valid = true;
};
thread_local std::optional<Capture> captured;
std::atomic<std::uint64_t> launches_of_graphs{0};
bool is_captured(cudaStream_t stream) {
  return captured && captured->stream == stream;
}
// Of what this thread may not ask for now: the capture has come to nothing.
cudaError_t refuse_in_capture() {
  captured->is_valid = false;
  return cudaErrorStreamCaptureUnsupported;
}
#define REFUSE_IN_CAPTURE \
  if (captured) return refuse_in_capture()

const Nodes& of(cudaGraph_t graph) {
  return *reinterpret_cast<const Nodes*>(graph);
}
// An executable one may be destroyed while it runs.
const std::shared_ptr<const Nodes>& of(cudaGraphExec_t graph) {
  return *reinterpret_cast<const std::shared_ptr<const Nodes>*>(graph);
}

// Of all streams that there are, and on which GPU each is.
std::mutex streams_mutex;
std::map<FakeStream, int>& streams() {
  static std::map<FakeStream, int> all;
  return all;
}
std::atomic<std::uint64_t> waits_for_devices{0};
// They are counted by themselves (device_waits()), and not as the host's waits for what it has issued (host_waits.h).
void wait_for_device() {
  ++waits_for_devices;
  const std::uint64_t waits_before = scaletrain::host_waits();
  std::vector<FakeStream> all;
  {
    const std::lock_guard lock(streams_mutex);
    for (const auto& [stream, device] : streams())
      if (device == device_of_thread) all.push_back(stream);
  }
  for (const FakeStream& stream : all) {
    try {
      stream->record().wait();
    } catch (...) {  // NOLINT: whoever waits for that stream hears of it
    }
  }
  scaletrain::host_waits() = waits_before;
}

std::function<bool(std::size_t)> page_locking;
// Memory of the process that cudaHostRegister has pinned, by its beginning.
std::mutex registered_mutex;
std::map<const std::byte*, std::size_t>& registered() {
  static std::map<const std::byte*, std::size_t> all;
  return all;
}
// How much of [memory, memory + bytes) is registered, and by how many calls.
std::pair<std::size_t, int> registered_of(const void* memory, std::size_t bytes) {
  const auto* const begin = static_cast<const std::byte*>(memory);
  const std::lock_guard lock(registered_mutex);
  std::pair<std::size_t, int> found{0, 0};
  for (const auto& [first, size] : registered()) {
    const std::byte* const low = std::max(first, begin);
    const std::byte* const high = std::min(first + size, begin + bytes);
    if (low >= high) continue;
    found.first += static_cast<std::size_t>(high - low);
    ++found.second;
  }
  return found;
}
// By one call as a whole, or not at all: CUDA documents no more than that.
bool may_be_copied(const void* memory, std::size_t bytes) {
  const auto [covered, calls] = registered_of(memory, bytes);
  return covered == 0 || (covered == bytes && calls == 1);
}

// cuStreamWaitValue32 with CU_STREAM_WAIT_VALUE_GEQ, which goes around the end of the numbers.
CUresult CUDAAPI wait_for_value(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  if (is_in_host_function || flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_INVALID_VALUE;
  if (has_failed(device_of_thread, "waits for values")) return CUDA_ERROR_LAUNCH_FAILED;
  of(stream).call([address, value] {
    const std::atomic_ref<cuuint32_t> reached(*reinterpret_cast<cuuint32_t*>(address));
    while (static_cast<std::int32_t>(reached.load() - value) < 0)
      std::this_thread::sleep_for(std::chrono::microseconds(20));
  });
  return CUDA_SUCCESS;
}

// As CUDA_MODULE_LOADING says.
bool loads_kernels_ahead() {
  const char* const mode = std::getenv("CUDA_MODULE_LOADING");
  return mode != nullptr && std::string_view(mode) == "EAGER";
}
CUresult CUDAAPI tell_loading_mode(CUmoduleLoadingMode* mode) {
  *mode = loads_kernels_ahead() ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

// Of streams: as NVIDIA's GPUs have it since Volta.
constexpr int first_priority = -5;

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

void run_in_turn(cudaStream_t stream, std::function<void()> given) {
  std::function<void()> function = [given = std::move(given)] {
    const FakeMemory::Running running;
    given();
  };
  if (is_captured(stream))
    captured->nodes.push_back(std::move(function));
  else if (stream == nullptr)
    function();
  else
    of(stream).call(std::move(function));
}

static void load_kernel(const void* kernel) {
  static std::mutex mutex;
  static std::set<const void*> loaded;
  {
    const std::lock_guard lock(mutex);
    if (loads_kernels_ahead() || !loaded.insert(kernel).second) return;
  }
  wait_for_device();
}

cudaError_t begin_launch(const void* kernel) {
  REFUSE_WHERE_FAILED("kernels");
  load_kernel(kernel);
  return cudaSuccess;
}

}  // namespace scaletrain::cuda

namespace scaletrain::fake_runtime {

std::uint64_t device_waits() {
  return waits_for_devices;
}
std::uint64_t graph_launches() {
  return launches_of_graphs;
}

void on_pinning(std::function<bool(std::size_t bytes)> locking) {
  page_locking = std::move(locking);
}

std::size_t registered_bytes() {
  const std::lock_guard lock(registered_mutex);
  std::size_t all = 0;
  for (const auto& [first, size] : registered()) all += size;
  return all;
}

}  // namespace scaletrain::fake_runtime

extern "C" {

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  REFUSE_IN_HOST_FUNCTION;
  if (to == nullptr || from == nullptr) return cudaErrorInvalidValue;
  if (!may_be_copied(to, bytes) || !may_be_copied(from, bytes)) return cudaErrorInvalidValue;
  REFUSE_WHERE_FAILED("copies");
  scaletrain::cuda::run_in_turn(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  REFUSE_IN_HOST_FUNCTION;
  if (to == nullptr) return cudaErrorInvalidValue;
  REFUSE_WHERE_FAILED("copies");
  scaletrain::cuda::run_in_turn(stream, [=] { std::memset(to, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  REFUSE_IN_HOST_FUNCTION;
  REFUSE_IN_CAPTURE;
  if (is_full()) return cudaErrorMemoryAllocation;
  wait_for_device();
  FakeMemory& all = FakeMemory::of_process();
  std::byte* const given = all.allocate(bytes);
  if (given == nullptr) return cudaErrorMemoryAllocation;
  std::memset(all.values_of(given), 0xff, bytes);
  FencedMemory::of_process().adopt(given, bytes, all.values_of(given));
  *memory = given;
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  REFUSE_IN_HOST_FUNCTION;
  REFUSE_IN_CAPTURE;
  wait_for_device();
  if (memory == nullptr) return cudaSuccess;
  FencedMemory::of_process().give_up(static_cast<const std::byte*>(memory));
  FakeMemory::of_process().free(static_cast<std::byte*>(memory));
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  REFUSE_IN_HOST_FUNCTION;
  REFUSE_IN_CAPTURE;
  if (page_locking && !page_locking(bytes)) return cudaErrorMemoryAllocation;
  wait_for_device();
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (*memory == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*memory, 0xff, bytes);
  auto* const given = static_cast<std::byte*>(*memory);
  FencedMemory::of_process().adopt(given, bytes, given);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned) {
  REFUSE_IN_HOST_FUNCTION;
  REFUSE_IN_CAPTURE;
  wait_for_device();
  if (memory == nullptr || bytes == 0) return cudaErrorInvalidValue;
  if (registered_of(memory, bytes).second > 0) return cudaErrorHostMemoryAlreadyRegistered;
  if (page_locking && !page_locking(bytes)) return cudaErrorMemoryAllocation;
  const std::lock_guard lock(registered_mutex);
  registered()[static_cast<const std::byte*>(memory)] = bytes;
  auto* const given = static_cast<std::byte*>(memory);
  FencedMemory::of_process().adopt(given, bytes, given);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* memory) {
  REFUSE_IN_HOST_FUNCTION;
  REFUSE_IN_CAPTURE;
  wait_for_device();
  const auto* const begin = static_cast<const std::byte*>(memory);
  FencedMemory::of_process().give_up(begin);
  const std::lock_guard lock(registered_mutex);
  return registered().erase(begin) == 1 ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
}
cudaError_t cudaFreeHost(void* memory) {
  REFUSE_IN_HOST_FUNCTION;
  REFUSE_IN_CAPTURE;
  wait_for_device();
  FencedMemory::of_process().give_up(static_cast<const std::byte*>(memory));
  std::free(memory);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  REFUSE_IN_HOST_FUNCTION;
  *least = 0;
  *greatest = first_priority;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  REFUSE_IN_HOST_FUNCTION;
  static std::atomic<std::uint64_t> seed{0};
  if (flags != cudaStreamNonBlocking || priority > 0 || priority < first_priority) return cudaErrorInvalidValue;
  const auto made = std::make_shared<LateStream>(seed++, Lateness::in_bursts);
  {
    const std::lock_guard lock(streams_mutex);
    streams().emplace(made, device_of_thread);
  }
  *stream = reinterpret_cast<cudaStream_t>(new FakeStream(made));
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  REFUSE_IN_HOST_FUNCTION;
  if (is_captured(stream)) return refuse_in_capture();
  {
    const std::lock_guard lock(streams_mutex);
    streams().erase(shared(stream));
  }
  delete &shared(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  REFUSE_IN_HOST_FUNCTION;
  if (is_captured(stream)) return refuse_in_capture();
  const cudaError_t error = after_waiting([&] { of(stream).synchronize(); });
  REFUSE_WHERE_FAILED("waits");
  return error;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  REFUSE_IN_HOST_FUNCTION;
  if (is_captured(stream)) {
    captured->is_valid = false;
    return cudaErrorStreamCaptureIsolation;
  }
  REFUSE_WHERE_FAILED("events");
  // What a stream was given itself it has run by then.
  if (of(event).stream != nullptr && of(event).stream != shared(stream))
    of(stream).call([waited_for = of(event)] { waited_for.moment.wait(); });
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  REFUSE_IN_HOST_FUNCTION;
  if (is_captured(stream)) return refuse_in_capture();
  REFUSE_WHERE_FAILED("calls");
  // One at a time, whatever the stream.
  static std::mutex turn;
  of(stream).call([=] {
    const std::lock_guard lock(turn);
    is_in_host_function = true;
    function(data);
    is_in_host_function = false;
  });
  return cudaSuccess;
}

// Of the driver's functions those that are asked for.
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  REFUSE_IN_HOST_FUNCTION;
  const std::string wanted = symbol;
  *function = wanted == "cuStreamWaitValue32"      ? reinterpret_cast<void*>(&wait_for_value)
              : wanted == "cuModuleGetLoadingMode" ? reinterpret_cast<void*>(&tell_loading_mode)
                                                   : nullptr;
  *found = *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  REFUSE_IN_HOST_FUNCTION;
  if (flags != cudaEventDisableTiming) return cudaErrorInvalidValue;
  *event = reinterpret_cast<cudaEvent_t>(new FakeEvent);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  REFUSE_IN_HOST_FUNCTION;
  delete &of(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  REFUSE_IN_HOST_FUNCTION;
  if (is_captured(stream)) return refuse_in_capture();
  REFUSE_WHERE_FAILED("events");
  of(event) = {of(stream).record(), shared(stream)};
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  REFUSE_IN_HOST_FUNCTION;
  REFUSE_WHERE_FAILED("waits");
  return of(event).moment.is_done() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  REFUSE_IN_HOST_FUNCTION;
  const cudaError_t error = after_waiting([&] { of(event).moment.wait(); });
  REFUSE_WHERE_FAILED("waits");
  return error;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  REFUSE_IN_HOST_FUNCTION;
  if (captured) return cudaErrorIllegalState;
  if (stream == nullptr || mode != cudaStreamCaptureModeThreadLocal) return cudaErrorStreamCaptureUnsupported;
  captured = Capture{.stream = stream};
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  REFUSE_IN_HOST_FUNCTION;
  *graph = nullptr;
  if (!is_captured(stream)) return cudaErrorIllegalState;
  const Capture ended = std::move(*captured);
  captured.reset();
  if (!ended.is_valid) return cudaErrorStreamCaptureInvalidated;
  *graph = reinterpret_cast<cudaGraph_t>(new Nodes(ended.nodes));
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  REFUSE_IN_HOST_FUNCTION;
  delete &of(graph);
  return cudaSuccess;
}
// It has memory of the GPU's.
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long flags) {
  REFUSE_IN_HOST_FUNCTION;
  REFUSE_IN_CAPTURE;
  if (flags != 0 || of(graph).empty()) return cudaErrorInvalidValue;
  if (is_full()) return cudaErrorMemoryAllocation;
  wait_for_device();
  *made = reinterpret_cast<cudaGraphExec_t>(new std::shared_ptr(std::make_shared<const Nodes>(of(graph))));
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t graph, cudaStream_t stream) {
  REFUSE_IN_HOST_FUNCTION;
  REFUSE_IN_CAPTURE;
  if (stream == nullptr || of(graph) == nullptr) return cudaErrorInvalidValue;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  REFUSE_IN_HOST_FUNCTION;
  REFUSE_IN_CAPTURE;
  REFUSE_WHERE_FAILED("graphs");
  ++launches_of_graphs;
  for (const std::function<void()>& node : *of(graph)) of(stream).call([nodes = of(graph), &node] { node(); });
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  REFUSE_IN_HOST_FUNCTION;
  delete &of(graph);
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  REFUSE_IN_HOST_FUNCTION;
  if (device < 0 || device >= number_of_gpus()) return cudaErrorInvalidDevice;
  device_of_thread = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  REFUSE_IN_HOST_FUNCTION;
  *device = device_of_thread;
  return cudaSuccess;
}
// Of a B200, whose parts are no powers of two.
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  if (attribute != cudaDevAttrMultiProcessorCount) return cudaErrorInvalidValue;
  *value = 148;
  return cudaSuccess;
}
// The runtime's header names it by its version.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  REFUSE_IN_HOST_FUNCTION;
  *properties = {};
  const int gpu = visible_gpus().at(static_cast<std::size_t>(device));
  const bool is_h100 = wanted_gpu(gpu).ends_with("H100");
  properties->uuid.bytes[0] = static_cast<char>(gpu + 1);
  properties->pciDomainID = 0xfa4e;  // which no machine has
  properties->pciBusID = 0x1b + gpu;
  std::snprintf(properties->name, sizeof properties->name, "%s", is_h100 ? "NVIDIA H100 80GB HBM3" : "the host");
  properties->major = wanted_gpu(gpu) == "old GPU" ? 7 : wanted_gpu(gpu) == "new GPU" ? 10 : is_h100 ? 9 : 8;
  properties->totalGlobalMem = memory_of_gpu(gpu);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* available, size_t* all) {
  REFUSE_IN_HOST_FUNCTION;
  *all = memory_of_gpu(visible_gpus().at(static_cast<std::size_t>(device_of_thread)));
  *available = free_memory_of(device_of_thread);
  return cudaSuccess;
}
// As SCALETRAIN_FAKE_GPU says (fake_machine.h).
cudaError_t cudaDriverGetVersion(int* version) {
  REFUSE_IN_HOST_FUNCTION;
  const std::string wanted = wanted_of_environment();
  *version = wanted == "no driver" ? 0 : wanted == "old driver" ? 12040 : 13000;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  REFUSE_IN_HOST_FUNCTION;
  const std::string wanted = wanted_of_environment();
  const bool is_there = wanted.empty() || wanted.ends_with("H100") || wanted.ends_with(" GPUs") ||
                        (wanted != "no GPU" && wanted.ends_with(" GPU"));
  *count = is_there ? number_of_gpus() : 0;
  if (is_there) return cudaSuccess;
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
