// The GPU that a test trains on: one that the host carries out (gpu_on_host.cpp), or that of this machine by its module
// (gpu_of_machine.cpp). A test program is linked with one of them.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace scaletrain {

// Whether there is none, as module_of_machine() says.
bool is_gpu_missing();
std::unique_ptr<Backend> make_gpu(DType compute);

}  // namespace scaletrain
