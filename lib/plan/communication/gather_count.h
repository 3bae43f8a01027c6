// How often the weights of a rank are gathered in one step where each use gathers them (ZeRO 3). Internal to plan.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/run_plan.h"
#include "store/store_memory.h"

namespace scaletrain {

// The unit whose weights an instruction uses first, of a stage whose chunks hold these units; -1: it uses none's.
int first_unit_used(const std::vector<std::vector<int>>& units_by_chunk, const Instruction& instruction);
// By step: the unit that the work behind it uses first, before the weights change; -1: none.
std::vector<int> units_behind(const std::vector<std::vector<int>>& units_by_chunk,
                              const std::vector<ScheduleStep>& steps);

// By bucket of the layout, for a step that begins right behind an update (nothing is gathered then). Follows the uses
// in the order of the executor's through the store's own policy (residency.h); cheap for any number of micro-batches.
std::vector<std::int64_t> count_gathers(const PhasePlan& plan, const ShardLayout& layout, const StoreMemory& memory,
                                        const std::vector<ScheduleStep>& steps);

}  // namespace scaletrain
