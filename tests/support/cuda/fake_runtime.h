// What the runtime that the host carries out (fake_runtime.cpp) tells a test.
#pragma once

#include <cstdint>

namespace scaletrain::fake_runtime {

// How often somebody has asked for what a driver may wait for a whole GPU in: memory, given or taken back, and a kernel
// that was not loaded yet.
std::uint64_t device_waits();
// Of CUDA graphs, by all streams.
std::uint64_t graph_launches();

}  // namespace scaletrain::fake_runtime
