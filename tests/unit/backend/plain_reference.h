// The f64 reference as the parity suite computes what it expects with it: optimised, and compiled without sanitizers,
// which such loops wait for most. The reference under them is the library's, which reference_test.cpp holds and the
// suite has as one of its backends.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace scaletrain::parity {

std::unique_ptr<Backend> make_plain_reference();

}  // namespace scaletrain::parity
