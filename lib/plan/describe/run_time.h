// How long a run takes: see RunTime. Internal to plan.
#pragma once

#include <optional>

#include "plan/describe/plan_facts.h"

namespace scaletrain {

// What the first rank of a stage moves where its optimizer state lies in the host's memory.
UpdatePass update_pass_of(const PhasePlan& phase, std::int64_t stage);
// What a step in halves (log.gradient_noise) takes longer than another, as a share of that: halves that do not fill
// their micro-batches are padded, and a pipeline is filled and emptied twice. bubble: of the other.
double added_by_halves(const PhasePlan& phase, double bubble);
// By what facts say of work, stages and budget; nothing where the peak is not known, or there is no step.
std::optional<RunTime> run_time(const PlanFacts& facts);

}  // namespace scaletrain
