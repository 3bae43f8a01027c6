// How long a process waits between two looks for another: longer each time, so that thousands that wait for one cost
// the file system they share little, and each a little differently, so that they do not look in step.
#pragma once

#include <algorithm>
#include <cstdint>

namespace scaletrain {

class Backoff {
 public:
  static constexpr double first_seconds = 0.05;
  static constexpr double growth = 1.6;
  static constexpr double shortest_cap = 2.0;
  static constexpr double longest_cap = 15.0;
  static constexpr double looks_per_second = 100.0;  // of all together, once they have waited for a while

  // One of `count` that wait alike.
  Backoff(std::int64_t index, std::int64_t count)
      : cap_(std::clamp(static_cast<double>(count) / looks_per_second, shortest_cap, longest_cap)),
        jitter_(jitter_of(index)) {}

  // Seconds until the next look: at most a quarter more or less than the common length, the same way each time.
  double next() {
    const double seconds = length_ * jitter_;
    length_ = std::min(length_ * growth, cap_);
    return seconds;
  }

 private:
  // Neighbours are spread evenly: multiples of the golden ratio.
  static double jitter_of(std::int64_t index) {
    constexpr double golden_ratio = 0.6180339887498949;
    const double turns = static_cast<double>(index) * golden_ratio;
    return 0.75 + 0.5 * (turns - static_cast<double>(static_cast<std::int64_t>(turns)));
  }

  double cap_;
  double jitter_;
  double length_ = first_seconds;
};

}  // namespace scaletrain
