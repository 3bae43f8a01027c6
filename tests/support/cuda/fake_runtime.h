// What the runtime that the host carries out (fake_runtime.cpp) tells a test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace scaletrain::fake_runtime {

// How often somebody has asked for what a driver may wait for a whole GPU in: memory, given or taken back, and a kernel
// that was not loaded yet.
std::uint64_t device_waits();
// Of CUDA graphs, by all streams.
std::uint64_t graph_launches();

// Called with the bytes that are to be pinned, each time that somebody asks for it and by him: what takes long there is
// slow page locking, and false is that there is no memory left to lock. Empty: it is there at once. Not to be set while
// memory is pinned.
void on_pinning(std::function<bool(std::size_t bytes)> locking);
// Bytes of the process's own memory that are registered now.
std::size_t registered_bytes();

// Memory of a GPU that a library takes, which nobody reaches: false if it has not as much.
bool take_memory(int device, std::size_t bytes);
void give_memory(int device, std::size_t bytes);
std::size_t taken_memory(int device);
// From now on others have all of its memory but so much, beside what is taken.
void leave_memory(int device, std::size_t bytes);
// The opposite, for all GPUs.
void free_memory();

}  // namespace scaletrain::fake_runtime
