// What the measuring programs share: the middle of several measurements.
#pragma once

#include <algorithm>
#include <vector>

namespace scaletrain {

// Of an even number the mean of the two in the middle.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

}  // namespace scaletrain
