#include "backend/cuda/cuda_stream.h"

#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/kernels/workspace.h"
#include "base/error.h"

namespace scaletrain::cuda {

struct CudaStream::Call {
  std::function<void()> function;
  std::shared_ptr<Calls> calls;
};

// What became of the functions of call().
class CudaStream::Calls {
 public:
  static void CUDART_CB run(void* data) {
    std::unique_ptr<Call> call(static_cast<Call*>(data));
    Calls& calls = *call->calls;
    if (!calls.has_failed()) {
      try {
        call->function();
      } catch (...) {
        const std::lock_guard lock(calls.mutex_);
        if (!calls.error_) calls.error_ = std::current_exception();
      }
    }
    const std::lock_guard lock(calls.mutex_);
    calls.ended_.push_back(std::move(call));
  }

  bool has_failed() {
    const std::lock_guard lock(mutex_);
    return error_ != nullptr;
  }
  void rethrow() {
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
  }
  std::exception_ptr take_error() {
    const std::lock_guard lock(mutex_);
    return std::exchange(error_, nullptr);
  }
  // What ended functions hold may be the GPU's, which the driver's thread may not give back.
  void drop_ended() {
    std::vector<std::unique_ptr<Call>> ended;
    const std::lock_guard lock(mutex_);
    ended.swap(ended_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
  std::vector<std::unique_ptr<Call>> ended_;
};

class CudaStream::Moment final : public Event::State {
 public:
  Moment(int device, cudaStream_t stream, std::shared_ptr<Calls> calls) : device_(device), calls_(std::move(calls)) {
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

 private:
  int device_;
  cudaEvent_t event_ = nullptr;
  std::shared_ptr<Calls> calls_;
};

CudaStream::CudaStream(int device) : device_(device), calls_(std::make_shared<Calls>()) {
  use_device(device_);
  // Ordered by events alone, never by the default stream.
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
}

CudaStream::~CudaStream() {
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
  calls_->drop_ended();
}

void CudaStream::synchronize() {
  use_device(device_);
  const cudaError_t error = cudaStreamSynchronize(stream_);
  calls_->drop_ended();
  if (const std::exception_ptr failure = calls_->take_error()) std::rethrow_exception(failure);
  check(error, "what a stream was given");
}

void CudaStream::call(std::function<void()> function) {
  use_device(device_);
  calls_->drop_ended();
  auto call = std::make_unique<Call>(Call{std::move(function), calls_});
  check(cudaLaunchHostFunc(stream_, Calls::run, call.get()), "a call of the host");
  call.release();  // NOLINT: it is run's now
}

Event CudaStream::record() {
  use_device(device_);
  return Event(std::make_shared<Moment>(device_, stream_, calls_));
}

void CudaStream::after(const Event& event) {
  use_device(device_);
  if (const auto* const moment = dynamic_cast<const Moment*>(event.state()))
    check(cudaStreamWaitEvent(stream_, moment->get(), 0), "the wait of a stream");
  else
    Stream::after(event);
}

std::byte* CudaStream::workspace() {
  if (workspace_.size() == 0) workspace_ = allocate_on_device(device_, workspace_bytes);
  return workspace_.data();
}

void use_device(int device) {
  check(cudaSetDevice(device), "the choice of a GPU");
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
