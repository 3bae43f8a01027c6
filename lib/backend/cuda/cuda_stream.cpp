#include "backend/cuda/cuda_stream.h"

#include <exception>
#include <utility>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/kernels/workspace.h"
#include "base/error.h"

namespace scaletrain::cuda {

class CudaStream::Moment final : public Event::State {
 public:
  Moment(int device, cudaStream_t stream, std::shared_ptr<HostCalls> calls)
      : device_(device), calls_(std::move(calls)) {
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "an event");
    const cudaError_t error = cudaEventRecord(event_, stream);
    if (error == cudaSuccess) return;
    cudaEventDestroy(event_);
    check(error, "an event");
  }
  ~Moment() override { cudaEventDestroy(event_); }
  Moment(const Moment&) = delete;
  Moment& operator=(const Moment&) = delete;

  bool is_done() override {
    use_device(device_);
    const cudaError_t error = cudaEventQuery(event_);
    if (error == cudaErrorNotReady) return false;
    check(error, "what a stream was given");
    return true;
  }
  void wait() override {
    use_device(device_);
    check(cudaEventSynchronize(event_), "what a stream was given");
    calls_->rethrow();
  }
  cudaEvent_t get() const { return event_; }
  HostCalls& calls() const { return *calls_; }

 private:
  int device_;
  cudaEvent_t event_ = nullptr;
  std::shared_ptr<HostCalls> calls_;
};

CudaStream::CudaStream(int device, Priority priority) : device_(device) {
  use_device(device_);
  calls_ = std::make_shared<HostCalls>();
  int usual = 0;
  int first = 0;
  check(cudaDeviceGetStreamPriorityRange(&usual, &first), "a look at the GPU");
  // Ordered by events alone, never by the default stream.
  check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority == Priority::first ? first : usual),
        "a stream");
}

CudaStream::~CudaStream() {
  try {
    flush();
  } catch (...) {  // NOLINT: a destructor reports nothing
  }
  cudaStreamSynchronize(stream_);
  graphs_.reset();
  cudaStreamDestroy(stream_);
  calls_->drop_ended();
}

void CudaStream::synchronize() {
  use_device(device_);
  flush();
  const cudaError_t error = cudaStreamSynchronize(stream_);
  calls_->drop_ended();
  if (const std::exception_ptr failure = calls_->take_error()) std::rethrow_exception(failure);
  check(error, "what a stream was given");
  if (graphs_) graphs_->make_graphs();
}

void CudaStream::call(std::function<void()> function) {
  use_device(device_);
  flush();
  calls_->issue(stream_, std::move(function));
}

Event CudaStream::record() {
  use_device(device_);
  flush();
  return Event(std::make_shared<Moment>(device_, stream_, calls_));
}

void CudaStream::after(const Event& event) {
  use_device(device_);
  flush();
  if (const auto* const moment = dynamic_cast<const Moment*>(event.state())) {
    check(cudaStreamWaitEvent(stream_, moment->get(), 0), "the wait of a stream");
    calls_->follow(moment->calls());
  } else {
    Stream::after(event);
  }
}

void CudaStream::run(OperationIssuer& issuer, const Operation& op) {
  use_device(device_);
  if (graphs_)
    graphs_->add(op);
  else
    issuer.issue(stream_, workspace(), op);
}

void CudaStream::use_graphs(OperationIssuer& issuer) {
  if (!graphs_) graphs_ = std::make_unique<OperationGraphs>(issuer, stream_, workspace());
}

std::byte* CudaStream::workspace() {
  if (workspace_.size() == 0) workspace_ = allocate_on_device(device_, workspace_bytes);
  return workspace_.data();
}

Buffer allocate_on_device(int device, std::size_t bytes) {
  use_device(device);
  void* data = nullptr;
  if (bytes > 0) check(cudaMalloc(&data, bytes), "an allocation");
  return {static_cast<std::byte*>(data), bytes, Space::device, [device](std::byte* memory, std::size_t) {
            cudaSetDevice(device);
            cudaFree(memory);
          }};
}

}  // namespace scaletrain::cuda
