// A stream of a GPU, and moments in it.
//
// What is issued behind a function of call() that throws is still run by the GPU, on numbers that nobody will use:
// until synchronize() has thrown that, no function behind it is called, and events behind it throw it.
#pragma once

#include <cuda_runtime_api.h>

#include <exception>
#include <memory>

#include "backend/cuda/host_calls.h"
#include "backend/cuda/operation_graphs.h"
#include "tensor/buffer.h"
#include "tensor/stream.h"

namespace scaletrain::cuda {

class CudaStream final : public Stream {
 public:
  // first: its kernels get a processor before those of other streams that wait for one.
  enum class Priority { usual, first };
  explicit CudaStream(int device, Priority priority = Priority::usual);  // PeerError
  ~CudaStream() override;                                                // when everything issued has run
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void synchronize() override;
  // The function ends, with what it holds, on a thread that uses the stream.
  void call(std::function<void()> function) override;
  Event record() override;
  void after(const Event& event) override;
  // Issues an operation: at once, or by graphs where it has them.
  void run(OperationIssuer& issuer, const Operation& op);
  // From now on operations are issued by graphs. The issuer must outlive the stream.
  void use_graphs(OperationIssuer& issuer);
  // What it has run is not to be used, nor what streams that wait for it have run: they throw the error wherever the
  // host waits for them from now on. Any thread.
  void fail(const std::exception_ptr& error) { calls_->fail(error); }

  // To issue something else to, behind everything so far.
  cudaStream_t get() const {
    flush();
    return stream_;
  }
  // Scratch of kernels, made when it is first asked for.
  std::byte* workspace();

 private:
  class Moment;

  void flush() const {
    if (graphs_) graphs_->flush();
  }

  int device_;
  cudaStream_t stream_ = nullptr;
  std::shared_ptr<HostCalls> calls_;  // its moments' too
  Buffer workspace_;
  std::unique_ptr<OperationGraphs> graphs_;
};

// Not filled. std::bad_alloc
Buffer allocate_on_device(int device, std::size_t bytes);

}  // namespace scaletrain::cuda
