#include "backend/cuda/host_calls.h"

#include <cuda.h>

#include <atomic>
#include <utility>

#include "backend/cuda/cuda_error.h"
#include "base/error.h"

namespace scaletrain::cuda {

namespace {

thread_local bool is_thread_of_calls = false;

using WaitValue = CUresult(CUDAAPI*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

// A function of the driver's, which the module is not linked to.
WaitValue wait_value() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  check(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &function, 13000, cudaEnableDefault, &found),
        "a look at the driver");
  if (found != cudaDriverEntryPointSuccess) throw PeerError("CUDA: the driver has no cuStreamWaitValue32");
  return reinterpret_cast<WaitValue>(function);
}

}  // namespace

struct HostCalls::Call {
  std::function<void()> function;
  HostCalls* calls;
};

HostCalls::HostCalls() {
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, sizeof *done_, cudaHostAllocPortable), "an allocation of pinned memory");
  done_ = static_cast<std::uint32_t*>(memory);
  *done_ = 0;
}

HostCalls::~HostCalls() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      stops_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  drop_ended();
  cudaFreeHost(done_);
}

void HostCalls::issue(cudaStream_t stream, std::function<void()> function) {
  static const WaitValue wait = wait_value();
  drop_ended();
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  auto call = std::make_unique<Call>(Call{std::move(function), this});
  check(cudaLaunchHostFunc(stream, come, call.get()), "a call of the host");
  call.release();  // NOLINT: it is come's now
  ++issued_;
  // Reached means at least so many, around the end of the numbers too.
  const CUresult result = wait(stream, reinterpret_cast<CUdeviceptr>(done_), issued_, CU_STREAM_WAIT_VALUE_GEQ);
  if (result != CUDA_SUCCESS)
    throw PeerError("CUDA: the wait of a stream for the host failed: error " + std::to_string(result));
}

void CUDART_CB HostCalls::come(void* call) {
  std::unique_ptr<Call> due(static_cast<Call*>(call));
  HostCalls& calls = *due->calls;
  const std::lock_guard lock(calls.mutex_);
  calls.due_.push_back(std::move(due));
  calls.changed_.notify_all();
}

void HostCalls::run() {
  is_thread_of_calls = true;
  std::atomic_ref<std::uint32_t> done(*done_);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stops_ || !due_.empty(); });
    if (due_.empty()) return;
    std::unique_ptr<Call> call = std::move(due_.front());
    due_.pop_front();
    if (!error_) {
      lock.unlock();
      std::exception_ptr error;
      try {
        call->function();
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      error_ = error;
    }
    ended_.push_back(std::move(call));
    done.store(done.load() + 1);
  }
}

void HostCalls::drop_ended() {
  std::vector<std::unique_ptr<Call>> ended;
  const std::lock_guard lock(mutex_);
  ended.swap(ended_);
}

void HostCalls::rethrow() {
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

std::exception_ptr HostCalls::take_error() {
  const std::lock_guard lock(mutex_);
  return std::exchange(error_, nullptr);
}

bool HostCalls::is_own_thread() {
  return is_thread_of_calls;
}

}  // namespace scaletrain::cuda
