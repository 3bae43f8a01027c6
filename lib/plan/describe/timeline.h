// A schedule as a chart: a row per stage, time to the right and to scale, for people.
#pragma once

#include <cstdint>
#include <string>

#include "parallel/schedule/simulate.h"

namespace scaletrain {

struct TimelineChart {
  std::string rows;
  // Each piece of work is named with its micro-batch ("F3", "B0", "F1c1" with chunks), where that fits; else it is
  // letters, capital for even micro-batches and small for odd ones, so that neighbours are told apart.
  bool is_named = false;
  // Behind each letter stands its model chunk ("F1"): where there are several and the page has room for it.
  bool tells_chunks = false;
  // More than one where stages are so many that the middle cannot be left out: then letters are capital, and work
  // shorter than a column may be missing.
  double forwards_per_column = 1.0;
  std::int64_t columns_left_out = 0;     // of the middle
  std::int64_t columns_per_forward = 1;  // of the median one, where columns are left out
  std::int64_t stages_left_out = 0;      // of the middle
};

// At most `width` characters wide and about `max_stages` rows high; '.' is idle. What does not fit is left out in the
// middle, where a pipeline repeats itself.
TimelineChart draw_timeline(const Timetable& timetable, std::int64_t chunks, std::size_t width, std::size_t max_stages);

}  // namespace scaletrain
