// The GPU that a test trains on: one that the host carries out (gpu_on_host.cpp), or that of this machine by its module
// (gpu_of_machine.cpp). A test program is linked with one of them.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"

namespace scaletrain {

// Why there is none; empty: there is one. One that is there and cannot be used is no reason: it is thrown.
std::string missing_gpu();
std::unique_ptr<Backend> make_gpu(DType compute);
// Whether the host reaches its memory, which is what the ranks of one process tell each other through.
bool has_reachable_memory();

}  // namespace scaletrain
