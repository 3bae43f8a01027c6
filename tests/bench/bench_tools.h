// What the measuring programs share: the middle of several measurements.
#pragma once

#include <algorithm>
#include <vector>

namespace scaletrain {

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace scaletrain
