// The run folder before training: made or checked, the configs written, the checkpoint to start from chosen. Done once
// by the agent, under the run's lock, before a worker starts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/load.h"

namespace scaletrain {

// --resume
struct ResumeRequest {
  enum class Mode { automatic, never, required, from_checkpoint };
  Mode mode = Mode::automatic;
  std::filesystem::path checkpoint;  // from_checkpoint
};
// "auto", "never", "required", or a path. A path is a checkpoint's folder.
ResumeRequest parse_resume(const std::string& text);

// Paths inside a run folder, in one place.
struct RunPaths {
  explicit RunPaths(std::filesystem::path run_folder) : folder(std::move(run_folder)) {}
  std::filesystem::path folder;
  std::filesystem::path config() const { return folder / "config.yaml"; }
  std::filesystem::path source_config() const { return folder / "config.source.yaml"; }
  std::filesystem::path metrics() const { return folder / "metrics.jsonl"; }
  std::filesystem::path logs() const { return folder / "logs"; }
  std::filesystem::path checkpoints() const { return folder / "checkpoints"; }
  std::filesystem::path lock() const { return folder / "lock.json"; }
};

// Where a worker begins.
struct StartPoint {
  std::optional<std::filesystem::path> checkpoint;  // nothing: from initial weights
  std::int64_t step = 0;
  std::int64_t generation = 0;  // of the checkpoints that will be written
};

using Report = std::function<void(const std::string&)>;

// Makes the folder (0750) if it is not there. A folder that is there must be empty or a run's; else UserError:
// something that is not ours stays untouched. InputError if it cannot be written to.
void open_run_folder(const RunPaths& paths);

// Chooses the checkpoint, checks what a resume may change, then writes config.yaml and config.source.yaml. Notices go
// to `report`. UserError: --resume never over checkpoints, a key that a resume must not change. InputError: --resume
// required without a checkpoint, none that is usable.
StartPoint prepare_run_folder(const RunPaths& paths, const LoadedConfig& config, const ResumeRequest& resume,
                              const Report& report);

// The start point after a worker died: the newest usable checkpoint of this run, one generation on.
StartPoint restart_point(const RunPaths& paths, const StartPoint& before, const Report& report);

}  // namespace scaletrain
