// What of a model a run trains, and from when on: for `scaletrain check` and for the start of a run.
#pragma once

#include <cstdint>
#include <string>

#include "parallel/param_table.h"

namespace scaletrain {

// "3 of 28 tensors, 1,024 of 31,232 parameters; after 100 steps also blocks.1 (12,672 parameters); frozen: embedding,
// parts of blocks.2 to blocks.5 (17,536 parameters)": units by their names, and each tensor once, of a run that has
// made so many steps. Empty where all of it is trained.
std::string trained_text(const ParamTable& table, std::int64_t steps = 0);

}  // namespace scaletrain
