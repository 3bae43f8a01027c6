// Where the peak of all ranks' devices comes from.
#pragma once

#include "train/start/worker_parts.h"

namespace scaletrain {

// Without measuring, else nothing: what the config says, what the data sheets say of the ranks' GPUs, or what the start
// before this one went by, if the metrics' last step says it. A restart is to be quick, and is on the same machines
// unless ranks may be spread anew. Every rank calls it.
DevicePeak known_peak(const WorkerParts& parts, const WorkerOptions& options);

// Of GPUs that are known, but in fp32, what their data sheets say; of others what is measured in
// WorkerOptions::calibration_seconds. The ranks measure at the same time, since they share memory and heat; every
// rank calls it.
DevicePeak measure_peak(WorkerParts& parts, double seconds, double processors_per_thread);

}  // namespace scaletrain
