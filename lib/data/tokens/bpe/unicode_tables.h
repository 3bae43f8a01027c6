// The data that make_unicode_tables.py writes into unicode_tables.cpp; unicode.h is what others use.
#pragma once

#include <array>
#include <cstdint>

namespace scaletrain::unicode_data {

// From `first` to the next entry's, all code points have this general category (its place in unicode.h's Category).
struct CategoryRange {
  std::uint32_t first;
  std::uint8_t category;
};

// The same of canonical combining classes.
struct CombiningRange {
  std::uint32_t first;
  std::uint8_t combining_class;
};

// One step of a canonical decomposition; `second` is 0 in one of a single code point. `composes`: NFC makes `whole` of
// the two again.
struct Decomposition {
  std::uint32_t whole;
  std::uint32_t first;
  std::uint32_t second;
  std::uint8_t composes;
};

extern const std::array<CategoryRange, 4099> kCategories;
extern const std::array<CombiningRange, 496> kCombiningClasses;
extern const std::array<Decomposition, 2060> kDecompositions;

}  // namespace scaletrain::unicode_data
