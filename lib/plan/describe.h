// A plan for people and for programs: what `scaletrain check` prints.
#pragma once

#include <string>

#include "config/config.h"
#include "plan/run_plan.h"

namespace scaletrain {

struct PlanDescription {
  std::string text;
  std::string json;  // one object
};

// Size and time are bounded whatever the world: ranks are shown by pattern, a timeline only where it fits a page.
PlanDescription describe_plan(const Config& config, const RunPlan& plan, std::size_t backend_workspace);

}  // namespace scaletrain
