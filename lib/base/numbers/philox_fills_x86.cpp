// For x86-64: fills for AVX2 and AVX-512 are in the program, the processor decides.
#include "base/numbers/philox_fill.h"

namespace scaletrain {

PhiloxFills philox_fills() {
  static constexpr const PhiloxFill* all[] = {&philox_fill_avx512, &philox_fill_avx2, &philox_fill_portable};
  return {all, 3};
}

}  // namespace scaletrain
