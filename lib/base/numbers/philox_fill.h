// The fills of philox.h, compiled once for every instruction set (philox_fill.inc): many elements at once, and the same
// bits as one by one, whichever of them is used. Internal to base.
//
// Sources for particular processors include this: a template or inline function of the standard library that such a
// source instantiates may be the copy that the linker keeps for all. So it needs none.
#pragma once

#include <cstddef>
#include <cstdint>

namespace scaletrain {

struct PhiloxFill {
  struct Range {
    std::uint32_t key_low = 0;
    std::uint32_t key_high = 0;
    std::uint64_t first = 0;  // element
    float* out = nullptr;
    std::size_t count = 0;
  };
  struct Interval {
    double low = 0.0;
    double width = 0.0;
    float last = 0.0F;  // no value is above it
  };

  // Words of blocks that follow each other, whose counters have the same upper half.
  struct WordRange {
    std::uint32_t key_low = 0;
    std::uint32_t key_high = 0;
    std::uint64_t block = 0;
    std::uint64_t stream = 0;
    std::uint32_t* out = nullptr;
    std::size_t count = 0;
  };

  const char* name;
  bool (*supported)();  // by this processor
  // out[i] = mean + deviation * z.
  void (*normal)(const Range& range, double mean, double deviation);
  void (*uniform)(const Range& range, const Interval& interval);
  void (*words)(const WordRange& range);
};

// Best first; the last one runs on every processor.
struct PhiloxFills {
  const PhiloxFill* const* begin;
  std::size_t count;
};
PhiloxFills philox_fills();

extern const PhiloxFill philox_fill_avx512;
extern const PhiloxFill philox_fill_avx2;
extern const PhiloxFill philox_fill_portable;

}  // namespace scaletrain
