// Whole numbers that tests and benchmarks draw.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "base/numbers/philox.h"

namespace scaletrain {

// Uniform in [0, bound) without bias that matters (64-bit multiply-shift). bound > 0.
inline std::uint64_t philox_below(PhiloxKey key, std::uint64_t index, std::uint64_t bound) {
  SCALETRAIN_CHECK(bound > 0);
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>(static_cast<Wide>(philox_u64(key, index)) * bound >> 64);
}

}  // namespace scaletrain
