// Elements of 16 bits as they lie in memory. bfloat16 has the exponent of fp32 and 8 significant bits, fp16 (IEEE 754
// binary16) 5 bits of exponent and 11 significant ones.
//
// Sources for newer processors include this header: no inline function here (backend/README.md says why).
#pragma once

#include <stdint.h>

namespace scaletrain {

struct Bf16 {
  uint16_t bits;

  Bf16() = default;
  // Rounded once, to nearest even, as convert_floats rounds.
  explicit Bf16(double value);
  operator double() const;  // NOLINT(google-explicit-constructor): exact
};

struct F16 {
  uint16_t bits;

  F16() = default;
  explicit F16(double value);
  operator double() const;  // NOLINT(google-explicit-constructor): exact
};

static_assert(sizeof(Bf16) == 2 && sizeof(F16) == 2);

}  // namespace scaletrain
