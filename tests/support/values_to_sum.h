// Operands of sums.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "tensor/halves.h"

namespace scaletrain {

// Values whose sum over ranks depends on the order in which they are added, others for each rank.
template <class T>
std::vector<T> values_to_sum(std::int64_t rank, std::int64_t count) {
  constexpr double unit = std::is_same_v<T, F16> ? 1e-6 : 1.0;  // so that no sum overflows
  std::vector<T> values(static_cast<std::size_t>(count));
  std::uint64_t state = 88172645463325252ULL + static_cast<std::uint64_t>(rank) * 977;
  for (T& value : values) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    const auto small = static_cast<std::int64_t>(state % 2001) - 1000;
    value = std::is_integral_v<T> ? static_cast<T>(small)
                                  : static_cast<T>(static_cast<double>(small) * std::pow(10.0, state % 7) * unit);
  }
  return values;
}

}  // namespace scaletrain
