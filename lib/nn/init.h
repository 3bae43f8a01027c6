// Initial weights: a pure function of (seed, row name, global element index), the same bits on every processor and
// layout.
#pragma once

#include <cstdint>

#include "parallel/param_store.h"

namespace scaletrain {

// Fills the masters that the rank holds, whole rows or its shard's parts, of every trained row by its InitialValues, on
// `threads` host threads.
void initialise_parameters(ParamStore& store, std::uint64_t seed, int threads);

}  // namespace scaletrain
