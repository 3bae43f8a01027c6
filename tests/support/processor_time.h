// How much a piece of a test computes: bounds on it hold however busy the machine is, as those on elapsed time do not.
#pragma once

#include <time.h>

namespace scaletrain {

// Of all threads of this process since it began.
inline double processor_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace scaletrain
