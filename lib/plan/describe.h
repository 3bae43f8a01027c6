// A plan for people and for programs: what `scaletrain check` prints.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "config/config.h"
#include "plan/hosts.h"
#include "plan/run_plan.h"

namespace scaletrain {

struct PlanDescription {
  std::string text;
  std::string json;  // one object, with the same facts
  // Not empty where the ranks of this machine need more memory than it has: what `run` would say, in one line.
  std::string refusal;
};

struct DescribeOptions {
  std::size_t backend_workspace = 0;  // of one rank
  bool all_on_one_host = true;        // as `run` starts them without a launcher, if launch.ranks_per_node allows it
  std::optional<std::uint64_t> machine_memory{};  // of that one host; nothing: unknown
  bool instructions = false;                      // list every instruction of every stage
};

// Size and time are bounded whatever the world: ranks are shown by pattern, long charts lose their middle.
PlanDescription describe_plan(const Config& config, const RunPlan& plan, const DescribeOptions& options);

}  // namespace scaletrain
