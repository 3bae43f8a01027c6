// Whether a test does less than it could: where faults of memory or threads are looked for, and scripts/nightly.sh has
// not asked for all.
#pragma once

#include <cstdlib>

#include "support/sanitizers.h"

namespace scaletrain {

inline bool is_sanitized_by_day() {
  return is_sanitized && std::getenv("SCALETRAIN_SANITIZED_ALL") == nullptr;
}

}  // namespace scaletrain
