// Which device the ranks of this place compute on: what run.device: auto is here, and the GPU that cuda finds. A GPU is
// looked at, and not used, before anything of the run is made.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "config/load.h"
#include "host/launcher.h"
#include "plan/run_plan.h"

namespace scaletrain {

// Of a config that may be wrong: the ranks that it and the launcher make.
std::int64_t ranks_of(const ParallelConfig& parallel, const LaunchConfig& launch, const LauncherPlace& place);

// run.device: auto of a run of so many ranks: a GPU where the run is one rank and there is one that can be used, else
// the processors. Told, but where there is no driver, and so nothing to choose.
DeviceKind choose_device(const ParallelConfig& parallel, std::int64_t ranks, std::vector<std::string>& notices);

struct VisibleGpus {
  DeviceFacts first;  // which the one rank computes on
  int count = 0;
};

// The GPUs of run.device: cuda. UserError that begins with the key.
VisibleGpus gpus_of_run();
// What there is to tell of those that nothing computes on; empty: there are none.
std::string idle_gpus_text(const VisibleGpus& gpus);

// Those of a run of run.device: cuda. One that cannot be is refused: of more ranks than GPUs may have so far (by `data`
// replicas), without a GPU, or with one of too little memory. UserError with the places of the keys.
VisibleGpus checked_gpus(const LoadedConfig& loaded, const RunPlan& plan, std::int64_t data);

}  // namespace scaletrain
