// Which devices the ranks of this place compute on: what run.device: auto is here, and the GPUs that cuda finds. A GPU
// is looked at, and not used, before anything of the run is made.
//
// Ranks that see the same GPUs take them in turn, the n-th the n-th. Several share one only where run.device: cuda asks
// for GPUs and there are fewer than ranks: each gets a part of its time and of its memory, which nobody should find out
// about by `auto`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "config/load.h"
#include "host/launcher.h"
#include "host/near_processors.h"
#include "plan/run_plan.h"

namespace scaletrain {

// Those that this process sees, by their numbers.
class VisibleGpus {
 public:
  VisibleGpus() = default;  // none
  // UserError that begins with the key: there is none that can be used. In a job of SLURM's that has no GPUs it says to
  // ask for them.
  static VisibleGpus look();

  std::int64_t count() const { return static_cast<std::int64_t>(all_.size()); }
  // UserError for one that is too old.
  const DeviceFacts& at(std::int64_t device) const;
  // With the least memory of so many, the first. UserError if one of them is too old.
  const DeviceFacts& smallest(std::int64_t count) const;
  // The same for processes that see the same ones in the same order.
  std::string identity() const;
  // Of each the processors near it, of those that this process may use (host/near_processors.h).
  std::vector<std::optional<NearProcessors>> near_processors() const;

 private:
  struct Gpu {
    DeviceFacts facts;
    std::string obstacle{};  // why it cannot be used
  };
  std::vector<Gpu> all_;
};

// Ranks of a node where parallel.data: auto and launch.ranks_per_node: auto leave their number to its GPUs: one each,
// or as many as make whole replicas of all nodes. Nothing where not even one replica has a GPU for each rank.
std::optional<std::int64_t> ranks_of_gpus(const ParallelConfig& parallel, std::int64_t nodes, std::int64_t gpus);
// launch, with that number if it is left to the GPUs.
LaunchConfig launch_on_gpus(const ParallelConfig& parallel, LaunchConfig launch, std::int64_t nodes, std::int64_t gpus);

// run.device: auto of a run that is started at this place, of a config that may be wrong: GPUs where each rank that
// sees them can have one, else the processors. Told, but where there is no driver, and so nothing to choose. world: of
// `check`, which plans for other hosts like this one.
DeviceKind choose_device(const Config& config, const LauncherPlace& place, std::optional<std::int64_t> world,
                         std::vector<std::string>& notices);

// What there is to tell where a job of SLURM's that was given no GPU computes on what it sees. Empty: nothing.
std::string unasked_gpus_notice();

// What there is to tell of GPUs that so many ranks see: that they share them, or that some are left idle. Empty:
// nothing.
std::string gpus_notice(const VisibleGpus& gpus, std::int64_t ranks);

// Those of these ranks (ascending) that compute on this GPU.
std::vector<std::int64_t> ranks_on_gpu(const std::vector<std::int64_t>& ranks, std::int64_t device, std::int64_t gpus);

// The GPU of a rank that a launcher has started, before it is known who sees the same ones: by its place on the host.
// The first where it has them for itself, or the launcher does not count the ranks of the host.
std::int64_t likely_gpu(const LauncherPlace& place, std::int64_t gpus);

// UserError where a variable of the environment would have a GPU compute something else than the config says.
void refuse_environment(const Config& config, DType compute);

// A run of run.device: cuda cannot be where one of the GPUs of these ranks is too old or has too little memory, or in
// such an environment: UserError with the places of the keys.
void refuse_unfit_gpus(const LoadedConfig& loaded, const RunPlan& plan, const VisibleGpus& gpus,
                       const std::vector<std::int64_t>& ranks);
// The same of one GPU and the ranks on it.
void refuse_unfit_gpu(const LoadedConfig& loaded, const RunPlan& plan, const VisibleGpus& gpus, std::int64_t device,
                      const std::vector<std::int64_t>& ranks);

}  // namespace scaletrain
