// What ranks reduce among GPUs: reduction.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/device_network.h"

namespace scaletrain::cuda {

// A type that is not reduced is a bug.
void reduce_in_order(cudaStream_t stream, const DeviceReduction& reduction);

}  // namespace scaletrain::cuda
