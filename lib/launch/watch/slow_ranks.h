// Finds ranks that are much slower than those that do the same work. All ranks of a run advance at the pace of the
// slowest, so their steps tell nothing; what tells is the time that each is busy in a step, the waits for its peers
// left out. The ranks may be on one host or on several.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "launch/workers/worker_channel.h"

namespace scaletrain {

class SlowRanks {
 public:
  // A rank is slow whose mean busy time is over this many times the median of its peers', in two windows in a row of so
  // many steps and seconds each: less may be chance on a machine that is shared.
  static constexpr double ratio = 2.0;
  static constexpr std::int64_t window_steps = 10;
  static constexpr double window_seconds = 5.0;

  // classes[i]: ranks of one class do the same work (the same pipeline stage); i is any numbering of the ranks.
  explicit SlowRanks(std::vector<std::int64_t> classes);

  struct Slow {
    std::size_t index = 0;
    double busy_seconds = 0.0;   // mean of a step
    double peers_seconds = 0.0;  // the median of its peers' means
  };
  // What each has told of itself since its start, and the seconds since this was made; any number of times. Whom to
  // warn about: each slow rank when it is found, then again only after it was not slow for a window.
  std::vector<Slow> observe(const std::vector<Pace>& paces, double now);

 private:
  std::vector<std::int64_t> classes_;
  std::vector<Pace> window_begin_;
  double begin_seconds_ = 0.0;
  std::vector<int> slow_windows_;  // in a row
};

// The class of each rank of a world whose pipeline has so many stages, each of equally many neighbouring ranks.
std::vector<std::int64_t> classes_of_stages(std::int64_t world, std::int64_t stages);

// The warning, about this rank of the world.
std::string slow_rank_text(std::int64_t rank, const SlowRanks::Slow& slow);

}  // namespace scaletrain
