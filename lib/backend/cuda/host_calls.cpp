#include "backend/cuda/host_calls.h"

#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <list>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

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
  if (found != cudaDriverEntryPointSuccess) throw gpu_failure("the driver has no cuStreamWaitValue32");
  return reinterpret_cast<WaitValue>(function);
}

}  // namespace

struct HostCalls::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::exception_ptr error;
  // In the stream's order: issued; come to their turn, and to be run; run.
  std::list<std::function<void()>> issued, due, ended;
  bool stops = false;
  std::exception_ptr failure;                     // of fail(): it stays
  std::vector<std::weak_ptr<State>> followers{};  // whose streams wait for this one

  // Streams may wait for each other in turn.
  void fail(const std::exception_ptr& thrown) {
    std::vector<std::weak_ptr<State>> behind;
    {
      const std::lock_guard lock(mutex);
      if (failure) return;
      failure = thrown;
      behind = followers;
    }
    for (const std::weak_ptr<State>& follower : behind)
      if (const auto state = follower.lock()) state->fail(thrown);
  }

  // Of the stream's thread.
  void run(std::uint32_t& of_stream) {
    is_thread_of_calls = true;
    const std::atomic_ref<std::uint32_t> done(of_stream);
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return stops || !due.empty(); });
      if (due.empty()) return;
      const auto call = due.begin();
      if (!error && !failure) {
        lock.unlock();
        std::exception_ptr thrown;
        try {
          (*call)();
        } catch (...) {
          thrown = std::current_exception();
        }
        lock.lock();
        error = thrown;
      }
      ended.splice(ended.end(), due, call);
      done.store(done.load() + 1);
    }
  }
};

HostCalls::HostCalls() : state_(std::make_shared<State>()) {
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, sizeof *done_, cudaHostAllocPortable), "an allocation of pinned memory");
  done_ = static_cast<std::uint32_t*>(memory);
  *done_ = 0;
}

HostCalls::~HostCalls() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(state_->mutex);
      state_->stops = true;
    }
    state_->changed.notify_all();
    thread_.join();
  }
  drop_ended();
  cudaFreeHost(done_);
}

void HostCalls::issue(cudaStream_t stream, std::function<void()> function) {
  static const WaitValue wait = wait_value();
  drop_ended();
  if (!thread_.joinable()) thread_ = std::thread([state = state_, done = done_] { state->run(*done); });
  auto given = std::make_unique<std::shared_ptr<State>>(state_);
  {
    const std::lock_guard lock(state_->mutex);
    state_->issued.push_back(std::move(function));
  }
  const cudaError_t error = cudaLaunchHostFunc(stream, come, given.get());
  if (error != cudaSuccess) {
    const std::lock_guard lock(state_->mutex);
    state_->issued.pop_back();  // whose turn never comes
  }
  check(error, "a call of the host");
  given.release();  // NOLINT: it is come's now
  ++issued_;
  // Reached means at least so many, around the end of the numbers too.
  const CUresult result = wait(stream, reinterpret_cast<CUdeviceptr>(done_), issued_, CU_STREAM_WAIT_VALUE_GEQ);
  if (result != CUDA_SUCCESS)
    throw gpu_failure("the wait of a stream for the host failed: error " + std::to_string(result));
}

void CUDART_CB HostCalls::come(void* given) {
  const std::unique_ptr<std::shared_ptr<State>> held(static_cast<std::shared_ptr<State>*>(given));
  State& state = **held;
  const std::lock_guard lock(state.mutex);
  state.due.splice(state.due.end(), state.issued, state.issued.begin());
  state.changed.notify_all();
}

void HostCalls::drop_ended() {
  std::list<std::function<void()>> ended;
  const std::lock_guard lock(state_->mutex);
  ended.swap(state_->ended);
}

void HostCalls::rethrow() {
  const std::lock_guard lock(state_->mutex);
  if (state_->failure) std::rethrow_exception(state_->failure);
  if (state_->error) std::rethrow_exception(state_->error);
}

std::exception_ptr HostCalls::take_error() {
  const std::lock_guard lock(state_->mutex);
  if (state_->failure) return state_->failure;
  return std::exchange(state_->error, nullptr);
}

void HostCalls::fail(const std::exception_ptr& error) {
  state_->fail(error);
}

void HostCalls::follow(HostCalls& other) {
  State& leader = *other.state_;
  if (&leader == state_.get()) return;
  std::exception_ptr failure;
  {
    const std::lock_guard lock(leader.mutex);
    failure = leader.failure;
    const auto is_known = [this](const std::weak_ptr<State>& one) { return one.lock() == state_; };
    std::erase_if(leader.followers, [](const std::weak_ptr<State>& one) { return one.expired(); });
    if (!std::any_of(leader.followers.begin(), leader.followers.end(), is_known)) leader.followers.push_back(state_);
  }
  if (failure) state_->fail(failure);
}

bool HostCalls::is_own_thread() {
  return is_thread_of_calls;
}

}  // namespace scaletrain::cuda
