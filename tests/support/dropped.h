// What dropout does to an element, restated from DropoutMask's words for tests.
#pragma once

#include <cstdint>

#include "base/numbers/philox.h"

namespace scaletrain {

// What element (row, column) of sample `sample`'s matrix with so many columns is multiplied by.
inline double dropped(PhiloxKey key, double probability, std::int64_t sample, std::int64_t row, std::int64_t columns,
                      std::int64_t column) {
  const std::int64_t blocks_of_row = columns / 4 + (columns % 4 != 0 ? 1 : 0);
  const auto block = static_cast<std::uint64_t>(row * blocks_of_row + column / 4);
  const auto number = static_cast<std::uint64_t>(sample);
  const auto words = philox(key, {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                                  static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32)});
  return words[static_cast<std::size_t>(column % 4)] / 4294967296.0 < probability ? 0.0 : 1.0 / (1.0 - probability);
}

}  // namespace scaletrain
