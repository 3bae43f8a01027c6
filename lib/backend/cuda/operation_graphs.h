// Operations of a stream as CUDA graphs: what a step issues is what the step before issued, to every address and
// number, and a graph of many operations is launched as fast as one.
//
// Operations are kept until something else is asked of the stream, or there are as many as a graph may have. A sequence
// that has come twice is made a graph when the host next waits for the stream, and is launched as one from then on.
// What comes for the first time, is short, or names memory of the caller (an optimizer's spans) is issued one by one,
// and everything is run in the order in which it was given: bits are those without graphs.
//
// A graph is made right after such a wait since the driver may have memory for it, and wait for all that the GPU has
// under way: this stream's own work then needs no peer any more.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "backend/operations.h"

namespace scaletrain::cuda {

// What issues one operation to a stream, with scratch of the stream's.
class OperationIssuer {
 public:
  virtual ~OperationIssuer() = default;
  virtual void issue(cudaStream_t stream, std::byte* workspace, const Operation& op) = 0;
};

// Of one stream, for the thread that issues to it.
class OperationGraphs {
 public:
  // As many as a graph may have, since the GPU gets none of them before the last has come. And as many as are worth
  // one.
  static constexpr std::size_t most_of_a_graph = 128;
  static constexpr std::size_t least_of_a_graph = 4;
  // Of all sequences together, less than a kilobyte of the host's memory each.
  static constexpr std::size_t most_kept = 32768;
  // Once there are as many, those make room that have not come for so many waits of the host's.
  static constexpr std::uint64_t idle_waits = 16;

  // Issuer and stream must live as long as this; the workspace is the stream's.
  OperationGraphs(OperationIssuer& issuer, cudaStream_t stream, std::byte* workspace);
  ~OperationGraphs();
  OperationGraphs(const OperationGraphs&) = delete;
  OperationGraphs& operator=(const OperationGraphs&) = delete;

  // Keeps an operation, or issues it behind those that are kept.
  void add(const Operation& op);
  // Issues what is kept. When it throws, nothing is kept any more.
  void flush();
  // The host has waited for the stream, which has nothing to run. std::bad_alloc, PeerError
  void make_graphs();

 private:
  struct Destroy {
    void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
  };
  using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, Destroy>;
  struct Sequence {
    std::vector<Operation> operations;
    std::uint64_t last_wait = 0;  // the number of the wait before which it came last
    bool has_come_again = false;
    Graph graph{};
  };

  void issue_one_by_one(const std::vector<Operation>& operations);
  // Where it is known. The one behind the last one that came is looked at first: they come in the same order.
  Sequence* find(const std::vector<Operation>& operations);
  void remember(std::vector<Operation> operations);
  void drop_idle();
  Graph graph_of(const std::vector<Operation>& operations);

  OperationIssuer& issuer_;
  cudaStream_t stream_;
  std::byte* workspace_;
  std::vector<Operation> kept_;
  std::vector<Sequence> sequences_;
  std::size_t next_ = 0;       // of sequences_, to look at first
  std::size_t num_known_ = 0;  // operations of all sequences
  bool is_short_of_room_ = false;
  std::uint64_t waits_ = 0;
};

}  // namespace scaletrain::cuda
