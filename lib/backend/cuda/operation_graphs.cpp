#include "backend/cuda/operation_graphs.h"

#include <algorithm>
#include <concepts>
#include <utility>
#include <variant>

#include "backend/cuda/cuda_error.h"

namespace scaletrain::cuda {

namespace {

template <class Descriptor>
concept Comparable = requires(const Descriptor& op) {
  { op == op } -> std::same_as<bool>;
};

bool is_comparable(const Operation& op) {
  return std::visit([]<class Descriptor>(const Descriptor&) { return Comparable<Descriptor>; }, op);
}

bool is_same(const Operation& a, const Operation& b) {
  if (a.index() != b.index()) return false;
  return std::visit(
      [&b]<class Descriptor>(const Descriptor& of_a) {
        if constexpr (Comparable<Descriptor>) return of_a == std::get<Descriptor>(b);
        return false;
      },
      a);
}

bool are_same(const std::vector<Operation>& a, const std::vector<Operation>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), is_same);
}

}  // namespace

OperationGraphs::OperationGraphs(OperationIssuer& issuer, cudaStream_t stream, std::byte* workspace)
    : issuer_(issuer), stream_(stream), workspace_(workspace) {
  kept_.reserve(most_of_a_graph);
}

OperationGraphs::~OperationGraphs() = default;

void OperationGraphs::add(const Operation& op) {
  if (!is_comparable(op)) {
    flush();
    issuer_.issue(stream_, workspace_, op);
    return;
  }
  kept_.push_back(op);
  if (kept_.size() == most_of_a_graph) flush();
}

void OperationGraphs::flush() {
  if (kept_.empty()) return;
  std::vector<Operation> operations = std::exchange(kept_, {});
  kept_.reserve(most_of_a_graph);
  Sequence* const known = operations.size() < least_of_a_graph ? nullptr : find(operations);
  if (known != nullptr && known->graph) {
    known->last_wait = waits_;
    check(cudaGraphLaunch(known->graph.get(), stream_), "the launch of a CUDA graph");
    return;
  }
  issue_one_by_one(operations);
  if (known != nullptr) {
    known->last_wait = waits_;
    known->has_come_again = true;
  } else if (operations.size() >= least_of_a_graph) {
    remember(std::move(operations));
  }
}

void OperationGraphs::make_graphs() {
  ++waits_;
  if (is_short_of_room_) drop_idle();
  for (Sequence& sequence : sequences_)
    if (sequence.has_come_again && !sequence.graph) sequence.graph = graph_of(sequence.operations);
}

void OperationGraphs::issue_one_by_one(const std::vector<Operation>& operations) {
  for (const Operation& op : operations) issuer_.issue(stream_, workspace_, op);
}

OperationGraphs::Sequence* OperationGraphs::find(const std::vector<Operation>& operations) {
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    const std::size_t at = (next_ + i) % sequences_.size();
    if (!are_same(sequences_[at].operations, operations)) continue;
    next_ = at + 1;
    return &sequences_[at];
  }
  return nullptr;
}

void OperationGraphs::remember(std::vector<Operation> operations) {
  if (num_known_ + operations.size() > most_kept) {
    is_short_of_room_ = true;
    return;
  }
  num_known_ += operations.size();
  sequences_.push_back({.operations = std::move(operations), .last_wait = waits_});
  next_ = sequences_.size();
}

void OperationGraphs::drop_idle() {
  const auto is_idle = [this](const Sequence& sequence) { return sequence.last_wait + idle_waits < waits_; };
  std::erase_if(sequences_, is_idle);
  num_known_ = 0;
  for (const Sequence& sequence : sequences_) num_known_ += sequence.operations.size();
  next_ = 0;
  is_short_of_room_ = false;
}

// What other threads ask of the driver meanwhile is none of this thread's business.
OperationGraphs::Graph OperationGraphs::graph_of(const std::vector<Operation>& operations) {
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "the start of a CUDA graph");
  cudaGraph_t captured = nullptr;
  try {
    issue_one_by_one(operations);
  } catch (...) {
    cudaStreamEndCapture(stream_, &captured);
    if (captured != nullptr) cudaGraphDestroy(captured);
    throw;
  }
  check(cudaStreamEndCapture(stream_, &captured), "the end of a CUDA graph");
  cudaGraphExec_t made = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&made, captured, 0);
  cudaGraphDestroy(captured);
  check(error, "the making of a CUDA graph");
  Graph graph(made);
  check(cudaGraphUpload(made, stream_), "the upload of a CUDA graph");
  return graph;
}

}  // namespace scaletrain::cuda
