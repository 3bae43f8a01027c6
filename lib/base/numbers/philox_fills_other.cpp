// For processors other than x86-64.
#include "base/numbers/philox_fill.h"

namespace scaletrain {

PhiloxFills philox_fills() {
  static constexpr const PhiloxFill* all[] = {&philox_fill_portable};
  return {all, 1};
}

}  // namespace scaletrain
