#include "run_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>

#include "backend/backend.h"
#include "base/error.h"
#include "base/text.h"
#include "launch/machine.h"
#include "train/assembly.h"

namespace scaletrain {

void refuse_too_large(const RunPlan& plan, std::int64_t first, std::int64_t count) {
  const PhasePlan& phase = plan.phases.front();
  const std::size_t workspace =
      cpu_workspace_bytes(static_cast<int>(std::max<std::int64_t>(1, available_processors() / count)));
  std::map<std::int64_t, std::int64_t> ranks_of_stage;
  for (std::int64_t rank = first; rank < first + count; ++rank)
    ++ranks_of_stage[phase.mesh.position_of(Rank(rank)).pipeline];
  std::uint64_t needed = 0;
  std::string parts;
  for (const auto& [stage, ranks] : ranks_of_stage) {
    // The ranks of a stage differ by padding at most.
    const MemoryPlan memory = phase.memory(phase.mesh.rank_of({.pipeline = stage}), workspace);
    needed += memory.total() * static_cast<std::uint64_t>(ranks);
    if (count > 1) parts += fmt::format("{} rank{} of stage {}, each:\n", ranks, ranks == 1 ? "" : "s", stage);
    parts += memory.text();
  }
  const std::uint64_t available = available_memory();
  if (needed <= available) return;
  throw UserError(fmt::format(
      "this run needs {} of memory and the machine has {}:\n{}Reduce train.micro_batch, model.context or the "
      "model",
      bytes_text(needed), bytes_text(available), parts));
}

RunPlan checked_plan(const LoadedConfig& loaded, std::optional<std::int64_t> world) {
  try {
    return plan_for(loaded.config, world);
  } catch (const UserError& error) {
    throw UserError(loaded.located(error.what()));
  }
}

std::uint16_t rendezvous_port(const Config& config) {
  return static_cast<std::uint16_t>(config.launch.port.value_or(0));
}

}  // namespace scaletrain
