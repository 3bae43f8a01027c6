// Initial weights: a pure function of (seed, parameter name, global element index), the same bits on every processor
// and layout.
#pragma once

#include <cstdint>

#include "base/process/work_count.h"
#include "store/param_store.h"

namespace scaletrain {

// Fills the masters that the rank holds, unsharded parameters or its shard's parts, of every parameter by its
// InitialValues, on `threads` host threads. work: counts stretches of 64 Ki elements.
void initialise_parameters(ParamStore& store, Stream& stream, std::uint64_t seed, int threads,
                           WorkCount* work = nullptr);
// The same for the parameters of adapters alone (lora.h), beside a base that is loaded.
void initialise_adapters(ParamStore& store, Stream& stream, std::uint64_t seed, int threads, WorkCount* work = nullptr);

}  // namespace scaletrain
