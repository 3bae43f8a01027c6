// Numbers that are equal but for a share of themselves.
#pragma once

#include <algorithm>
#include <cmath>
#include <ostream>

namespace scaletrain {

// CHECK(x == Near(0.01).epsilon(1e-6)). Of zero nothing but zero is near. doctest's own Approx takes its share of 1 +
// the number, so that with 0.05 of it 0.04 is as good as 0.01: no test uses that one.
class Near {
 public:
  explicit Near(double value) : value_(value) {}
  // How far apart, as a share of the larger of the two.
  Near epsilon(double share) const {
    Near out = *this;
    out.share_ = share;
    return out;
  }
  friend bool operator==(double actual, const Near& expected) {
    return std::abs(actual - expected.value_) <=
           expected.share_ * std::max(std::abs(actual), std::abs(expected.value_));
  }
  friend std::ostream& operator<<(std::ostream& out, const Near& near) {
    return out << near.value_ << " within a share of " << near.share_;
  }

 private:
  double value_;
  double share_ = 1e-6;
};

}  // namespace scaletrain
