// The loops, one per operation, over elements of type T (float or double), are in the files that are included here.
// Every sum and every function is computed in double whatever T is: the float reference differs from the double one
// only by the rounding of what it stores. What only the values of an operand can tell (ids in range) is checked there.
#include "backend/host_backend.h"
#include "backend/reference/attention.inc"
#include "backend/reference/elementwise.inc"
#include "backend/reference/layers.inc"

namespace scaletrain {

namespace {

template <class T>
class ReferenceBackend final : public HostBackend {
 public:
  DType compute_type() const override { return dtype_of<T>(); }
  std::string description() const override { return "reference " + std::string(to_text(compute_type())); }
  int num_threads() const override { return 1; }
  std::size_t workspace_bytes() const override { return 0; }
  std::unique_ptr<PackedWeight> pack(Stream&, ConstView) override { return nullptr; }

 private:
  void launch(Stream&, const Operation& op) override {
    std::visit([](const auto& descriptor) { reference::compute<T>(descriptor); }, op);
  }
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend(DType compute) {
  SCALETRAIN_CHECK(compute == DType::f32 || compute == DType::f64);
  if (compute == DType::f64) return std::make_unique<ReferenceBackend<double>>();
  return std::make_unique<ReferenceBackend<float>>();
}

}  // namespace scaletrain
