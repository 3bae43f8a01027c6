#include "backend/backend.h"
#include "backend/reference/kernels.h"

namespace scaletrain {

namespace {

template <class T>
class ReferenceBackend final : public Backend {
 public:
  DType compute_type() const override { return dtype_of<T>(); }
  std::string description() const override { return "reference " + std::string(to_text(compute_type())); }
  int num_threads() const override { return 1; }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<HostStream>(); }
  Buffer allocate(std::size_t bytes) override { return Buffer(bytes); }
  std::size_t workspace_bytes() const override { return 0; }
  std::unique_ptr<PackedWeight> pack(Stream&, ConstView) override { return nullptr; }

 private:
  void launch(Stream&, const LinearForward& op) override { reference::compute<T>(op); }
  void launch(Stream&, const LinearBackwardInput& op) override { reference::compute<T>(op); }
  void launch(Stream&, const LinearBackwardWeight& op) override { reference::compute<T>(op); }
  void launch(Stream&, const NormForward& op) override { reference::compute<T>(op); }
  void launch(Stream&, const NormBackwardInput& op) override { reference::compute<T>(op); }
  void launch(Stream&, const NormBackwardWeight& op) override { reference::compute<T>(op); }
  void launch(Stream&, const ActivationForward& op) override { reference::compute<T>(op); }
  void launch(Stream&, const ActivationBackward& op) override { reference::compute<T>(op); }
  void launch(Stream&, const RopeRotate& op) override { reference::compute<T>(op); }
  void launch(Stream&, const AttentionForward& op) override { reference::compute<T>(op); }
  void launch(Stream&, const AttentionBackward& op) override { reference::compute<T>(op); }
  void launch(Stream&, const EmbeddingForward& op) override { reference::compute<T>(op); }
  void launch(Stream&, const EmbeddingBackward& op) override { reference::compute<T>(op); }
  void launch(Stream&, const CrossEntropy& op) override { reference::compute<T>(op); }
  void launch(Stream&, const SoftmaxStatistics& op) override { reference::compute<T>(op); }
  void launch(Stream&, const CrossEntropyParts& op) override { reference::compute<T>(op); }
  void launch(Stream&, const Add& op) override { reference::compute<T>(op); }
  void launch(Stream&, const Copy& op) override { reference::compute(op); }
  void launch(Stream&, const Fill& op) override { reference::compute(op); }
  void launch(Stream&, const SumOfSquares& op) override { reference::compute(op); }
  void launch(Stream&, const AdamWStep& op) override { reference::compute<T>(op); }
  void launch(Stream&, const SgdStep& op) override { reference::compute<T>(op); }
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend(DType compute) {
  SCALETRAIN_CHECK(compute == DType::f32 || compute == DType::f64);
  if (compute == DType::f64) return std::make_unique<ReferenceBackend<double>>();
  return std::make_unique<ReferenceBackend<float>>();
}

}  // namespace scaletrain
