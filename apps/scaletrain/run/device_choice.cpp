#include "device_choice.h"

#include <fmt/format.h>

#include <limits>
#include <optional>
#include <string_view>

#include "backend/cuda_module.h"
#include "base/error.h"
#include "run_checks.h"
#include "train/start/assembly.h"

namespace scaletrain {

namespace {

void refuse_ranks(const LoadedConfig& loaded, std::int64_t data) {
  Config config = loaded.config;
  config.parallel.data = data;
  std::string text;
  for (const std::string& line : unsupported_values(config)) text += (text.empty() ? "" : "\n") + line;
  if (!text.empty()) throw UserError(loaded.located(text));
}

// What would be in the way of one rank is told when there is one.
std::string several_ranks_text(const std::optional<DeviceFacts>& gpu, const ParallelConfig& parallel,
                               std::int64_t ranks) {
  std::string settings;
  const auto add_if = [&settings](bool is_several, std::string_view key) {
    if (is_several) settings += fmt::format(" --set {}=1", key);
  };
  add_if(parallel.data.value_or(ranks) > 1, "parallel.data");
  add_if(parallel.tensor > 1, "parallel.tensor");
  add_if(parallel.pipeline > 1, "parallel.pipeline");
  return fmt::format(
      "run.device: auto is cpu here{}: several ranks on GPUs are not supported yet, and this run has {}{}{}",
      gpu ? fmt::format(", though there is a GPU ({})", gpu->name) : "", ranks,
      settings.empty() ? "" : "; one rank may compute on a GPU:", settings);
}

}  // namespace

VisibleGpus gpus_of_run() {
  constexpr int first = 0;
  const CudaModule module(cuda_module_path());
  return {.first = module.look_at_device(first), .count = module.num_devices()};
}

std::string idle_gpus_text(const VisibleGpus& gpus) {
  if (gpus.count <= 1) return {};
  return fmt::format("1 of {} visible GPUs is used, the first: several ranks on GPUs are not supported yet",
                     gpus.count);
}

std::int64_t ranks_of(const ParallelConfig& parallel, const LaunchConfig& launch, const LauncherPlace& place) {
  if (!place.is_per_node) return place.world;
  std::int64_t ranks = 0;
  const bool is_too_large =
      __builtin_mul_overflow(parallel.tensor, parallel.pipeline, &ranks) ||
      (parallel.data ? __builtin_mul_overflow(ranks, *parallel.data, &ranks)
                     : __builtin_mul_overflow(launch.ranks_per_node.value_or(ranks), place.world, &ranks));
  return is_too_large ? std::numeric_limits<std::int64_t>::max() : ranks;
}

DeviceKind choose_device(const ParallelConfig& parallel, std::int64_t ranks, std::vector<std::string>& notices) {
  if (!has_nvidia_driver()) return DeviceKind::cpu;
  std::optional<DeviceFacts> gpu;
  std::string obstacle;
  try {
    gpu = gpus_of_run().first;
  } catch (const UserError& error) {
    obstacle = reason_without_key(error);
  }
  if (ranks > 1) {
    notices.push_back(several_ranks_text(gpu, parallel, ranks));
    return DeviceKind::cpu;
  }
  notices.push_back(gpu ? fmt::format("run.device: auto is cuda here: {}", gpu->name)
                        : fmt::format("run.device: auto is cpu here: {}", obstacle));
  return gpu ? DeviceKind::cuda : DeviceKind::cpu;
}

VisibleGpus checked_gpus(const LoadedConfig& loaded, const RunPlan& plan, std::int64_t data) {
  refuse_ranks(loaded, data);
  VisibleGpus gpus;
  with_places(loaded, [&gpus] { gpus = gpus_of_run(); });
  refuse_too_large_for_gpu(loaded, plan, gpus.first);
  return gpus;
}

}  // namespace scaletrain
