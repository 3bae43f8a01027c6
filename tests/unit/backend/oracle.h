// What tests of the reference backend, the oracle of all others, hold it against.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>

#include "parity.h"

namespace scaletrain::parity {

inline double dot(const Values& a, const Values& b) {
  REQUIRE(a.size() == b.size());
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

inline Values zeros(std::int64_t count) {
  return Values(static_cast<std::size_t>(count), 0.0);
}

// Central differences of fourth order: with a step of 1e-3 both their error and the rounding are near 1e-11.
inline void check_gradient(const char* name, Values x, const std::function<double(const Values&)>& loss,
                           const Values& gradient) {
  CAPTURE(name);
  REQUIRE(x.size() == gradient.size());
  REQUIRE_FALSE(x.empty());
  constexpr double step = 1e-3;
  for (std::size_t e = 0; e < x.size(); ++e) {
    CAPTURE(e);
    const double before = x[e];
    const auto at = [&](double offset) {
      x[e] = before + offset;
      const double value = loss(x);
      x[e] = before;
      return value;
    };
    const double slope = (8.0 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12.0 * step);
    CHECK(std::fabs(slope - gradient[e]) <= 1e-8 * std::max(1.0, std::fabs(slope)));
  }
}

// A device of the f64 reference that owns its backend.
struct Oracle {
  std::unique_ptr<Backend> backend = make_reference_backend(DType::f64);
  Device device{*backend};
};

inline void check_close(const Values& found, const Values& expected, double tolerance = 1e-12) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t e = 0; e < found.size(); ++e) {
    CAPTURE(e);
    CHECK(std::fabs(found[e] - expected[e]) <= tolerance * std::max(1.0, std::fabs(expected[e])));
  }
}

}  // namespace scaletrain::parity
