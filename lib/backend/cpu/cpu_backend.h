// The cpu backend's class: hands each operation, cut into items, to the pool. Only cpu_backend.cpp makes one.
#pragma once

#include <string>

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/thread_pool.h"

namespace scaletrain::cpu {

class CpuBackend final : public Backend {
 public:
  CpuBackend(int threads, const Kernels& kernels, WorkCount* work);

  DType compute_type() const override { return DType::f32; }
  std::string description() const override;
  int num_threads() const override { return pool_.size(); }
  std::unique_ptr<Stream> make_stream() override;
  Buffer allocate(std::size_t bytes) override { return Buffer(bytes); }
  std::size_t workspace_bytes() const override;
  std::unique_ptr<PackedWeight> pack(Stream& stream, ConstView values) override;

 private:
  void launch(Stream& stream, const LinearForward& op) override;
  void launch(Stream& stream, const LinearBackwardInput& op) override;
  void launch(Stream& stream, const LinearBackwardWeight& op) override;
  void launch(Stream& stream, const NormForward& op) override;
  void launch(Stream& stream, const NormBackwardInput& op) override;
  void launch(Stream& stream, const NormBackwardWeight& op) override;
  void launch(Stream& stream, const ActivationForward& op) override;
  void launch(Stream& stream, const ActivationBackward& op) override;
  void launch(Stream& stream, const RopeRotate& op) override;
  void launch(Stream& stream, const AttentionForward& op) override;
  void launch(Stream& stream, const AttentionBackward& op) override;
  void launch(Stream& stream, const EmbeddingForward& op) override;
  void launch(Stream& stream, const EmbeddingBackward& op) override;
  void launch(Stream& stream, const CrossEntropy& op) override;
  void launch(Stream& stream, const SoftmaxStatistics& op) override;
  void launch(Stream& stream, const CrossEntropyParts& op) override;
  void launch(Stream& stream, const Add& op) override;
  void launch(Stream& stream, const Copy& op) override;
  void launch(Stream& stream, const Fill& op) override;
  void launch(Stream& stream, const SumOfSquares& op) override;
  void launch(Stream& stream, const AdamWStep& op) override;
  void launch(Stream& stream, const SgdStep& op) override;

  // body(first, count) for pieces of [0, total) of a size that does not depend on the number of threads.
  template <class Body>
  void for_pieces(std::int64_t total, std::int64_t piece, Body&& body);
  // The same for rows of `columns` elements, in pieces of about as many elements.
  template <class Body>
  void for_rows(std::int64_t rows, std::int64_t columns, Body&& body);
  // The sum in order of value(i) for i in [0, count), which threads compute some at a time: the same bits for any
  // number of threads.
  template <class Value>
  double ordered_sum(std::int64_t count, std::int64_t at_a_time, Value&& value);

  const Kernels& kernels_;
  Buffer workspace_;  // partial sums, then each thread's scratch
  ThreadPool pool_;
};

}  // namespace scaletrain::cpu
