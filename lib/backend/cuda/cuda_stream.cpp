#include "backend/cuda/cuda_stream.h"

#include <exception>
#include <mutex>
#include <utility>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/kernels/workspace.h"
#include "base/error.h"

namespace scaletrain::cuda {

// What a function of call() has thrown, until synchronize() has told it.
class CudaStream::Failure {
 public:
  void set(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
  }
  bool is_set() {
    const std::lock_guard lock(mutex_);
    return error_ != nullptr;
  }
  void rethrow() {
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
  }
  std::exception_ptr take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(error_, nullptr);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

class CudaStream::Moment final : public Event::State {
 public:
  Moment(cudaStream_t stream, std::shared_ptr<Failure> failure) : failure_(std::move(failure)) {
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
    const cudaError_t error = cudaEventQuery(event_);
    if (error == cudaErrorNotReady) return false;
    check(error, "what a stream was given");
    return true;
  }
  void wait() override {
    check(cudaEventSynchronize(event_), "what a stream was given");
    failure_->rethrow();
  }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
  std::shared_ptr<Failure> failure_;
};

struct CudaStream::Call {
  std::function<void()> function;
  std::shared_ptr<Failure> failure;

  static void CUDART_CB run(void* data) {
    const std::unique_ptr<Call> call(static_cast<Call*>(data));
    if (call->failure->is_set()) return;
    try {
      call->function();
    } catch (...) {
      call->failure->set(std::current_exception());
    }
  }
};

CudaStream::CudaStream() : failure_(std::make_shared<Failure>()) {
  // Ordered by events alone, never by the default stream.
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
}

CudaStream::~CudaStream() {
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
}

void CudaStream::synchronize() {
  const cudaError_t error = cudaStreamSynchronize(stream_);
  if (const std::exception_ptr failure = failure_->take()) std::rethrow_exception(failure);
  check(error, "what a stream was given");
}

void CudaStream::call(std::function<void()> function) {
  auto call = std::make_unique<Call>(Call{std::move(function), failure_});
  check(cudaLaunchHostFunc(stream_, Call::run, call.get()), "a call of the host");
  call.release();  // NOLINT: it is run's now
}

Event CudaStream::record() {
  return Event(std::make_shared<Moment>(stream_, failure_));
}

void CudaStream::after(const Event& event) {
  if (const auto* const moment = dynamic_cast<const Moment*>(event.state()))
    check(cudaStreamWaitEvent(stream_, moment->get(), 0), "the wait of a stream");
  else
    Stream::after(event);
}

std::byte* CudaStream::workspace() {
  if (workspace_.size() == 0) workspace_ = allocate_on_device(workspace_bytes);
  return workspace_.data();
}

Buffer allocate_on_device(std::size_t bytes) {
  void* data = nullptr;
  if (bytes > 0) check(cudaMalloc(&data, bytes), "an allocation");
  return {static_cast<std::byte*>(data), bytes, Space::device,
          [](std::byte* memory, std::size_t) { cudaFree(memory); }};
}

}  // namespace scaletrain::cuda
