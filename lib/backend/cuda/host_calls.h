// Functions of the host in the order of a GPU's stream, on a thread of the stream's own: CUDA has one thread for those
// of all streams, which a function that waits for another rank would hold up for every one of them.
//
// The stream's turn is told to the thread by a function of CUDA's that only does so; the stream itself then waits for a
// number in pinned memory, which the thread writes when the function has run.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <thread>

namespace scaletrain::cuda {

class HostCalls {
 public:
  HostCalls();  // PeerError, std::bad_alloc; of the thread's current device
  // The stream has run everything, or will never run anything more.
  ~HostCalls();
  HostCalls(const HostCalls&) = delete;
  HostCalls& operator=(const HostCalls&) = delete;

  // Issues a function. It may not use the GPU, and ends, with what it holds, in drop_ended().
  void issue(cudaStream_t stream, std::function<void()> function);
  // Of functions that have run. What they hold may be the GPU's, which is given back by a thread that uses the stream.
  void drop_ended();

  // After a function has thrown, none behind it is called. Any thread.
  void rethrow();
  std::exception_ptr take_error();
  // As if a function had thrown: what the stream has run is not to be used, nor what streams have run that wait for it.
  // Any thread.
  void fail(const std::exception_ptr& error);
  // This stream waits for one of those: it fails with it, also if that is later or has been before.
  void follow(HostCalls& other);
  // Whether the calling thread runs such functions.
  static bool is_own_thread();

 private:
  struct State;
  static void CUDART_CB come(void* state);

  // Shared with what CUDA has been given to call, which it may do after an error of the GPU has ended the stream.
  std::shared_ptr<State> state_;
  std::uint32_t issued_ = 0;
  std::uint32_t* done_ = nullptr;  // pinned: the number of functions that have run, which the stream waits for
  std::thread thread_;             // from the first function on
};

}  // namespace scaletrain::cuda
