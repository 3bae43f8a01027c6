// The library's loops once more, in a namespace of their own: what they are in the library is instrumented.
#include "plain_reference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "backend/host_backend.h"
#include "backend/moment_codes.h"
#include "backend/operations.h"
#include "base/numbers/philox.h"
#include "tensor/dtype.h"

#define reference plain_reference
#include "backend/reference/attention.inc"
#include "backend/reference/elementwise.inc"
#include "backend/reference/layers.inc"
#undef reference

namespace scaletrain::parity {

namespace {

class PlainReference final : public HostBackend {
 public:
  DType compute_type() const override { return DType::f64; }
  std::string description() const override { return "reference F64, not instrumented"; }
  int num_threads() const override { return 1; }
  std::size_t workspace_bytes() const override { return 0; }
  std::size_t packed_bytes(const Shape&) const override { return 0; }
  std::unique_ptr<PackedWeight> pack(Stream&, ConstView, Region) override { return nullptr; }

 private:
  void launch(Stream&, const Operation& op) override {
    std::visit([](const auto& descriptor) { plain_reference::compute<double>(descriptor); }, op);
  }
};

}  // namespace

std::unique_ptr<Backend> make_plain_reference() {
  return std::make_unique<PlainReference>();
}

}  // namespace scaletrain::parity
