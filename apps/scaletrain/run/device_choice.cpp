#include "device_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "backend/cuda_module.h"
#include "base/error.h"
#include "base/numbers/checked.h"
#include "base/text.h"
#include "host/machine.h"
#include "run_checks.h"

namespace scaletrain {

namespace {

// Of all places, and of a config whose degrees may be anything.
std::int64_t ranks_of(const ParallelConfig& parallel, std::int64_t data) {
  constexpr std::int64_t beyond_all = std::int64_t{1} << 40;
  std::int64_t ranks = 0;
  const bool is_too_large =
      __builtin_mul_overflow(parallel.tensor, parallel.pipeline, &ranks) || __builtin_mul_overflow(ranks, data, &ranks);
  return is_too_large ? beyond_all : std::clamp<std::int64_t>(ranks, 1, beyond_all);
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// SLURM gives each task GPUs of its own where it is asked to: --gpus-per-task, --ntasks-per-gpu=1, --gpu-bind=single:1.
// Where srun alone was asked, a task hears of it only by how its GPUs are bound. By that tasks may be more than GPUs,
// which they then take in turn.
bool has_own_gpus(const LauncherPlace& place) {
  if (place.is_per_node || place.launcher != "SLURM") return false;
  if (!variable("SLURM_GPUS_PER_TASK").empty() || variable("SLURM_NTASKS_PER_GPU") == "1") return true;
  std::string bound = variable("SLURMD_TRES_BIND");  // "gpu:per_task:1"
  if (bound.empty()) bound = variable("SLURM_GPU_BIND");
  // Behind "verbose,", if that is asked for.
  std::int64_t each = bound.ends_with("single:1") ? 1 : 0;
  constexpr std::string_view per_task = "per_task:";
  if (const std::size_t at = bound.find(per_task); at != std::string::npos)
    each = std::atoll(bound.c_str() + at + per_task.size());
  const std::int64_t here = std::atoll(variable("SLURM_GPUS_ON_NODE").c_str());
  return each > 0 && place.knows_local_world && place.local_world <= here / each;
}

// Whether this is a job of SLURM's that was given no GPU. It may see some all the same: only cgroups hide those of
// others.
bool lacks_gpus_of_slurm() {
  if (variable("SLURM_JOB_ID").empty()) return false;
  for (const char* name : {"SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS",
                           "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_GPUS_PER_SOCKET"})
    if (!variable(name).empty()) return false;
  return true;
}

constexpr std::string_view no_gpus_of_slurm = "SLURM has given this job no GPU: submit it with --gpus-per-node";

// Whoever finds none in such a job learns first what would give it some.
CudaModule open_module() {
  try {
    return CudaModule(cuda_module_path());
  } catch (const NoGpuError& error) {
    if (!lacks_gpus_of_slurm()) throw;
    throw NoGpuError(fmt::format("{}{} ({})", cuda_key, no_gpus_of_slurm, reason_without_key(error)));
  }
}

// How many see the GPUs that this place sees.
std::int64_t ranks_beside(const Config& config, const LauncherPlace& place, std::optional<std::int64_t> world,
                          std::int64_t gpus) {
  if (!place.is_per_node) return has_own_gpus(place) ? 1 : place.local_world;
  const ParallelConfig& parallel = config.parallel;
  if (config.launch.ranks_per_node) return *config.launch.ranks_per_node;
  if (world) return std::min(*world, gpus);  // of hosts that have GPUs enough, if there are several
  if (parallel.data) return ceil_div(ranks_of(parallel, *parallel.data), place.world);
  return ranks_of_gpus(parallel, place.world, gpus).value_or(ranks_of(parallel, 1));
}

// What would leave one rank.
std::string one_rank_text(const ParallelConfig& parallel, std::int64_t gpus) {
  std::string settings;
  const auto add_if = [&settings](bool is_several, std::string_view key) {
    if (is_several) settings += fmt::format(" --set {}=1", key);
  };
  add_if(parallel.data.value_or(1) > 1, "parallel.data");
  add_if(parallel.tensor > 1, "parallel.tensor");
  add_if(parallel.pipeline > 1, "parallel.pipeline");
  return gpus == 1 && !settings.empty() ? fmt::format("; one rank has it for itself:{}", settings) : "";
}

}  // namespace

VisibleGpus VisibleGpus::look() {
  const CudaModule module = open_module();
  VisibleGpus gpus;
  for (int device = 0; device < module.num_devices(); ++device) {
    try {
      gpus.all_.push_back({.facts = module.look_at_device(device)});
    } catch (const UserError& error) {
      gpus.all_.push_back({.facts = {}, .obstacle = error.what()});
    }
  }
  return gpus;
}

const DeviceFacts& VisibleGpus::at(std::int64_t device) const {
  const Gpu& gpu = all_.at(static_cast<std::size_t>(device));
  if (!gpu.obstacle.empty()) throw UserError(gpu.obstacle);
  return gpu.facts;
}

const DeviceFacts& VisibleGpus::smallest(std::int64_t count) const {
  std::int64_t found = 0;
  for (std::int64_t device = 0; device < count; ++device)
    if (at(device).memory < at(found).memory) found = device;
  return at(found);
}

std::string VisibleGpus::identity() const {
  std::string text;
  for (const Gpu& gpu : all_) text += gpu.facts.id + ",";
  return text;
}

std::vector<std::optional<NearProcessors>> VisibleGpus::near_processors() const {
  const std::vector<int> usable = affinity_processors();
  std::vector<std::optional<NearProcessors>> near;
  near.reserve(all_.size());
  for (const Gpu& gpu : all_) near.push_back(processors_near(gpu.facts.bus_address, usable));
  return near;
}

std::optional<std::int64_t> ranks_of_gpus(const ParallelConfig& parallel, std::int64_t nodes, std::int64_t gpus) {
  const std::int64_t replica = ranks_of(parallel, 1);
  for (std::int64_t ranks = gpus; ranks >= 1; --ranks)
    if (checked_mul(nodes, ranks) % replica == 0) return ranks;
  return std::nullopt;
}

LaunchConfig launch_on_gpus(const ParallelConfig& parallel, LaunchConfig launch, std::int64_t nodes,
                            std::int64_t gpus) {
  if (!parallel.data && !launch.ranks_per_node) launch.ranks_per_node = ranks_of_gpus(parallel, nodes, gpus);
  return launch;
}

DeviceKind choose_device(const Config& config, const LauncherPlace& place, std::optional<std::int64_t> world,
                         std::vector<std::string>& notices) {
  if (!has_nvidia_driver()) return DeviceKind::cpu;
  try {
    const VisibleGpus gpus = VisibleGpus::look();
    const std::int64_t ranks = ranks_beside(config, place, world, gpus.count());
    const std::int64_t used = std::min(ranks, gpus.count());
    for (std::int64_t device = 1; device < used; ++device) gpus.at(device);
    const std::string name = gpus.at(0).name;
    if (!place.is_per_node && !place.knows_local_world && !has_own_gpus(place)) {
      notices.push_back(
          fmt::format("run.device: auto is cpu here: {} does not say how many of the ranks are on this host, which has "
                      "{} ({}); set run.device: cuda if there is one for each",
                      place.launcher, counted(gpus.count(), "GPU"), name));
      return DeviceKind::cpu;
    }
    if (ranks <= gpus.count()) {
      notices.push_back(
          fmt::format("run.device: auto is cuda here: {}", used == 1 ? name : fmt::format("{} GPUs ({})", used, name)));
      return DeviceKind::cuda;
    }
    const std::string seen = fmt::format("{} ({})", counted(gpus.count(), "GPU"), name);
    if (!place.is_per_node) {
      // Which of them see the same ones is not known before they have met.
      notices.push_back(
          fmt::format("run.device: auto is cpu here: {} ranks are on this host, and this one sees {}; set run.device: "
                      "cuda if each is given a GPU of its own, or if they are to share",
                      ranks, seen));
      return DeviceKind::cpu;
    }
    notices.push_back(fmt::format(
        "run.device: auto is cpu here: the {} ranks would have to share {}, which run.device: cuda has them do{}",
        ranks, seen, one_rank_text(config.parallel, gpus.count())));
  } catch (const UserError& error) {
    notices.push_back(fmt::format("run.device: auto is cpu here: {}", reason_without_key(error)));
  }
  return DeviceKind::cpu;
}

std::string unasked_gpus_notice() {
  // Where SLURM gives GPUs, or parts of them, it says which.
  if (!lacks_gpus_of_slurm() || !variable("CUDA_VISIBLE_DEVICES").empty()) return {};
  return fmt::format("{}, if SLURM counts GPUs here; those that this run takes may be given to others",
                     no_gpus_of_slurm);
}

std::string gpus_notice(const VisibleGpus& gpus, std::int64_t ranks) {
  const std::int64_t count = gpus.count();
  if (ranks < count)
    return fmt::format("{} of {} visible GPUs {} used, the first{}: more replicas (parallel.data) would use the others",
                       ranks, count, ranks == 1 ? "is" : "are", ranks == 1 ? "" : fmt::format(" {}", ranks));
  if (ranks == count) return {};
  const std::string each =
      count == 1 ? "" : fmt::format(", {}{} on each", ranks % count == 0 ? "" : "up to ", ceil_div(ranks, count));
  return fmt::format(
      "{} ranks share {} ({}){}: each has a part of its time and its memory, and all together are not faster than one "
      "rank on each GPU",
      ranks, counted(count, "GPU"), gpus.at(0).name, each);
}

std::vector<std::int64_t> ranks_on_gpu(const std::vector<std::int64_t>& ranks, std::int64_t device, std::int64_t gpus) {
  std::vector<std::int64_t> on_it;
  for (auto index = static_cast<std::size_t>(device); index < ranks.size(); index += static_cast<std::size_t>(gpus))
    on_it.push_back(ranks[index]);
  return on_it;
}

void refuse_unfit_gpus(const LoadedConfig& loaded, const RunPlan& plan, const VisibleGpus& gpus,
                       const std::vector<std::int64_t>& ranks) {
  const std::int64_t used = std::min(gpus.count(), std::ssize(ranks));
  if (loaded.config.launch.transport == RankTransport::nccl && used < std::ssize(ranks))
    throw UserError(loaded.located(fmt::format(
        "launch.transport: nccl is between GPUs that each have one rank, and {} ranks would share {}: set auto",
        ranks.size(), counted(gpus.count(), "GPU"))));
  for (std::int64_t device = 0; device < used; ++device)
    refuse_unfit_gpu(loaded, plan, gpus, device, ranks_on_gpu(ranks, device, gpus.count()));
}

void refuse_environment(const Config& config, DType compute) {
  refuse_cuda_environment(compute, config.compute_precision() == Precision::tf32);
}

void refuse_unfit_gpu(const LoadedConfig& loaded, const RunPlan& plan, const VisibleGpus& gpus, std::int64_t device,
                      const std::vector<std::int64_t>& ranks) {
  with_places(loaded, [&] {
    gpus.at(device);
    refuse_environment(loaded.config, plan.phases.front().compute);
  });
  refuse_too_large_for_gpu(loaded, plan, gpus.at(device), ranks);
}

std::int64_t likely_gpu(const LauncherPlace& place, std::int64_t gpus) {
  return has_own_gpus(place) || !place.knows_local_world ? 0 : place.local_rank % gpus;
}

}  // namespace scaletrain
