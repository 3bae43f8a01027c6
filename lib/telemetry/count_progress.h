// How far a piece of work has come that is counted (samples of an evaluation, say): on a terminal one line that renews
// itself and goes at the end, elsewhere a plain line now and then, none for work that is soon done.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "base/clock.h"

namespace scaletrain {

struct CountProgressOptions {
  std::string what;  // "held.txt"
  std::string unit;  // "samples"
  bool live = false;
  double least_interval = 0.1;  // seconds between renewals of the live line
  double first_line = 2.0;      // plain lines: seconds until the first
  double every = 10.0;          // and between two
};

// Writes to a stream that it does not own and never closes; failures to write are ignored. For one thread.
class CountProgress {
 public:
  CountProgress(std::FILE* out, CountProgressOptions options);
  ~CountProgress();
  CountProgress(const CountProgress&) = delete;
  CountProgress& operator=(const CountProgress&) = delete;

  // done of all; the time left is estimated from the calls so far.
  void update(std::int64_t done, std::int64_t all);

 private:
  std::FILE* out_;
  CountProgressOptions options_;
  MonotonicTime start_;
  MonotonicTime last_{};
  bool any_ = false;
};

}  // namespace scaletrain
