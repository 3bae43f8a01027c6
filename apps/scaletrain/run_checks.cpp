#include "run_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "backend/backend.h"
#include "base/error.h"
#include "base/text.h"
#include "launch/machine.h"
#include "plan/hosts.h"
#include "train/assembly.h"

namespace scaletrain {

namespace {

// Of ascending ranks: what each stretch of neighbours needs, added up by stage.
HostMemory memory_together(const PhasePlan& phase, const std::vector<std::int64_t>& ranks, std::size_t workspace) {
  HostMemory all;
  for (std::size_t begin = 0; begin < ranks.size();) {
    std::size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    for (const HostMemory::Part& part :
         memory_of_ranks(phase, ranks[begin], static_cast<std::int64_t>(end - begin), workspace).parts) {
      const auto same = std::find_if(all.parts.begin(), all.parts.end(),
                                     [&part](const HostMemory::Part& other) { return other.stage == part.stage; });
      if (same == all.parts.end()) {
        all.parts.push_back(part);
      } else {
        same->ranks += part.ranks;
      }
    }
    begin = end;
  }
  return all;
}

}  // namespace

std::size_t workspace_of_sharers(std::int64_t sharers) {
  return cpu_workspace_bytes(static_cast<int>(std::max<std::int64_t>(1, available_processors() / sharers)));
}

void refuse_too_large(const RunPlan& plan, std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), first);
  refuse_too_large(plan, ranks);
}

void refuse_too_large(const RunPlan& plan, const std::vector<std::int64_t>& ranks) {
  const auto count = static_cast<std::int64_t>(ranks.size());
  const HostMemory memory = memory_together(plan.phases.front(), ranks, workspace_of_sharers(count));
  const std::uint64_t available = available_memory();
  if (memory.total() <= available) return;
  std::string parts;
  for (const HostMemory::Part& part : memory.parts) {
    if (count > 1)
      parts += fmt::format("{} rank{} of stage {}, each:\n", part.ranks, part.ranks == 1 ? "" : "s", part.stage);
    parts += part.each.text();
  }
  throw UserError(fmt::format(
      "this run needs {} of memory and the machine has {}:\n{}Reduce train.micro_batch, model.context or the "
      "model{}",
      bytes_text(memory.total()), bytes_text(available), parts,
      count > 1 ? ", or start fewer ranks on this machine" : ""));
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
