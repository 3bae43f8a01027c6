// Sizes that each key allows and that are beyond 64 bits together: the user's to mend, not a bug.
#pragma once

#include <string>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "config/config.h"

namespace scaletrain {

// Names the keys that make sizes, with their values.
std::string size_refusal(const Config& config);

// Runs f, which plans for this config; a number that does not fit 64 bits is a UserError.
template <class F>
auto within_size_limits(const Config& config, F f) {
  try {
    return f();
  } catch (const SizeError&) {
    throw UserError(size_refusal(config));
  }
}

}  // namespace scaletrain
