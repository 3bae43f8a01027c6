// The element types of the reference: T is the compute type.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "backend/operations.h"
#include "base/numbers/philox.h"
#include "tensor/dtype.h"

namespace scaletrain::reference {

// Statistics, gradients of parameters, masters and optimizer state: f32 under every compute type but f64.
template <class T>
using Master = std::conditional_t<std::is_same_v<T, double>, double, float>;

// What dropout multiplies element (row, column) of a sample's matrix by.
inline double dropout_factor(const DropoutMask& mask, std::int64_t sample, std::int64_t row, std::int64_t columns,
                             std::int64_t column) {
  if (!mask) return 1.0;
  const auto block = static_cast<std::uint64_t>(DropoutMask::first_block(row, columns) + column / 4);
  const auto number = static_cast<std::uint64_t>(mask.samples.as<std::int64_t>()[sample]);
  const std::array<std::uint32_t, 4> words =
      philox(mask.key, {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                        static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32)});
  return words[static_cast<std::size_t>(column % 4)] < mask.threshold() ? 0.0 : mask.factor();
}

}  // namespace scaletrain::reference
