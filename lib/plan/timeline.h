// A schedule as a chart: a row of time columns per stage, for people.
#pragma once

#include <string>

#include "parallel/simulate.h"

namespace scaletrain {

// One column is the time of one forward, input part or weight part; a whole backward takes two, '.' is idle. Each cell
// names its micro-batch ("F3", "B0", "F1c1" with chunks) where that fits `width` characters, else it is a letter. Empty
// where not even letters fit. The costs must be whole numbers.
std::string timeline_text(const Timetable& timetable, std::int64_t chunks, std::size_t width);

}  // namespace scaletrain
