// Every instruction of every stage in one step, for people who want to see what the executor does: in its order, with
// receives posted ahead, and without what it passes over. Internal to plan.
#pragma once

#include <string>
#include <vector>

#include "plan/run_plan.h"

namespace scaletrain {

// [stage][step]: "F0", "send a0>1 | receive g0<1".
std::vector<std::vector<std::string>> instructions_of(const PhasePlan& phase);

// The same with a legend: stages side by side if they fit the page, else one below the other with steps in a line.
std::string instructions_text(const PhasePlan& phase, std::size_t page_width);

}  // namespace scaletrain
