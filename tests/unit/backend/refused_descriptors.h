// A good call of an operation, then the same call with one thing wrong, which Backend::run must refuse.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "parity.h"

namespace scaletrain::parity {

// Buffers for descriptors: contents do not matter, shapes and types do.
class SharedBuffers {
 public:
  View floats(Shape shape) { return device_.put(Values(static_cast<std::size_t>(shape.num_elements()), 1.0), shape); }
  View bytes(Shape shape) { return device_.put_bytes(Ids(static_cast<std::size_t>(shape.num_elements()), 1), shape); }
  View doubles(Shape shape) {
    return device_.put_as(DType::f64, Values(static_cast<std::size_t>(shape.num_elements()), 1.0), shape);
  }
  View ids(Shape shape) { return device_.put_ids(Ids(static_cast<std::size_t>(shape.num_elements())), shape); }

  View numbers(Shape shape) {
    return device_.put_numbers(std::vector<std::int64_t>(static_cast<std::size_t>(shape.num_elements())), shape);
  }

  // Runs `good`, then expects a BugError that names `operand` after `break_it` changed a copy.
  template <class Descriptor, class Change>
  void refuses(const Descriptor& good, const std::string& operand, Change break_it) {
    CAPTURE(operand);
    CHECK_NOTHROW(device_.run(good));
    Descriptor bad = good;
    break_it(bad);
    std::string message;
    try {
      device_.run(bad);
    } catch (const BugError& error) {
      message = error.what();
    }
    CAPTURE(message);
    CHECK(message.find("." + operand + ": ") != std::string::npos);
  }

 private:
  std::unique_ptr<Backend> backend_ = make_reference_backend(DType::f32);
  Device device_{*backend_};
};

}  // namespace scaletrain::parity
