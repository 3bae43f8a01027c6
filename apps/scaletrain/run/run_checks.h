// What a run is refused for before anything is started, whoever starts its ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/process/exit_code.h"
#include "config/load.h"
#include "plan/run_plan.h"
#include "train/start/run_folder.h"

namespace scaletrain {

// The plan for this world; its refusals with the places of their keys.
RunPlan checked_plan(const LoadedConfig& loaded, std::optional<std::int64_t> world);

// What the check throws that begins with a key gets the key's place.
void with_places(const LoadedConfig& loaded, const std::function<void()>& check);

// Where the run will begin from model.init.from, and the folder is missing or holds another model: UserError or
// InputError with the place of the key.
void refuse_unfit_weights(const LoadedConfig& loaded, const RunPlan& plan);

// A run that cannot fit the memory of its host is refused before it starts to swap: UserError. The ranks of this host
// are `count` from `first` on.
void refuse_too_large(const LoadedConfig& loaded, const RunPlan& plan, std::int64_t first, std::int64_t count);
// The same for any ranks, ascending.
void refuse_too_large(const LoadedConfig& loaded, const RunPlan& plan, const std::vector<std::int64_t>& ranks);

// The same of the memory of a GPU and the ranks that compute on it.
void refuse_too_large_for_gpu(const LoadedConfig& loaded, const RunPlan& plan, const DeviceFacts& gpu,
                              const std::vector<std::int64_t>& ranks);

// What a start brings to this host at one time.
struct HostShare {
  std::int64_t first = 0;   // of its ranks, which are neighbours
  std::int64_t count = 1;   // each a worker
  std::int64_t agents = 1;  // that start them: one, or one for each
  bool serves = false;      // the rendezvous of all ranks
};
// A start that the system's limits on processes, threads and descriptors leave no room for is refused: UserError that
// names the limit. None of its workers may be running.
void refuse_beyond_limits(const RunPlan& plan, const HostShare& share);

// Says so where so many ranks of this machine share fewer processors.
void notice_crowd(std::int64_t ranks);

// The kernels' workspace of each rank where so many share this machine's processors.
std::size_t workspace_of_sharers(const PhasePlan& phase, std::int64_t sharers);

// launch.port, or 0 for any free one.
std::uint16_t rendezvous_port(const Config& config);

// What --resume says, with the job that this start is of.
ResumeRequest requested_resume(const std::string& text, const RunPaths& paths);
// After an end with this code: says so where the same command would be refused if it were given again.
void notice_never(const ResumeRequest& resume, ExitCode code);

}  // namespace scaletrain
