// The loops, one per operation, over elements of type T (double, float, Bf16 or F16), are in the files that are
// included here. Every sum and every function is computed in double whatever T is: the references differ from the
// double one only by the rounding of what they store. What only the values of an operand can tell (ids in range) is
// checked there.
#include "backend/host_backend.h"
#include "backend/moment_codes.h"
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
  std::size_t packed_bytes(const Shape&) const override { return 0; }
  std::unique_ptr<PackedWeight> pack(Stream&, ConstView, Region) override { return nullptr; }

 private:
  void launch(Stream&, const Operation& op) override {
    std::visit([](const auto& descriptor) { reference::compute<T>(descriptor); }, op);
  }
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend(DType compute) {
  switch (compute) {
    case DType::f64:
      return std::make_unique<ReferenceBackend<double>>();
    case DType::f32:
      return std::make_unique<ReferenceBackend<float>>();
    case DType::bf16:
      return std::make_unique<ReferenceBackend<Bf16>>();
    case DType::f16:
      return std::make_unique<ReferenceBackend<F16>>();
    default:
      SCALETRAIN_CHECK(is_floating(compute));
      return nullptr;
  }
}

}  // namespace scaletrain
