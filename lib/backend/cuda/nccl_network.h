// Groups of GPUs by NCCL. Nothing of it is asked for but sends and receives, in batches: sums are made by our own
// kernel in the order of the ranks, so their bits depend on no algorithm that NCCL may choose; and nothing is connected
// or allocated in a step that the first messages of a group have not had connected and allocated.
//
// Kernels of NCCL wait for peers on the GPU, and this is what keeps them from waiting for each other in a circle:
//   - A rank issues all of its groups' messages from one thread, in the order that the plan gives all ranks. So where
//     the driver waits for the whole device, what it waits for has been issued or will be by a peer that waits for
//     nothing behind it.
//   - Kernels of different groups may come to run in different orders on different GPUs: so each group has no more than
//     its share of the GPU's processors (DeviceMembership::share), and all of a rank's groups run beside each other.
//   - Receives that a pipeline posts ahead wait for what this rank has yet to send. They are issued when they are
//     waited for (store/device_communicator.h).
//   - No kernel is loaded by its first launch: a driver that loads them so makes a rank refuse NCCL.
#pragma once

#include "backend/device_network.h"

namespace scaletrain::cuda {

// Of the device, which must be the process's for good: NCCL reads its environment once.
FoundDeviceNetwork find_nccl_network(int device, const DeviceNetworkOptions& options);

}  // namespace scaletrain::cuda
