#include "launch/watch/slow_ranks.h"
#include "support/near.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace scaletrain {
namespace {

// Ranks that take so long for each of their steps; a window after another is watched.
class Race {
 public:
  explicit Race(std::vector<std::int64_t> classes) : paces_(classes.size()), ranks_(std::move(classes)) {}

  // The indices that are found slow.
  std::vector<std::size_t> window(const std::vector<double>& step_seconds, std::int64_t steps = 10,
                                  double seconds = 5.0) {
    now_ += seconds;
    for (std::size_t i = 0; i < paces_.size(); ++i) {
      paces_[i].steps += steps;
      paces_[i].busy_seconds += step_seconds[i] * static_cast<double>(steps);
    }
    std::vector<std::size_t> found;
    for (const SlowRanks::Slow& slow : ranks_.observe(paces_, now_)) {
      found.push_back(slow.index);
      last = slow;
    }
    return found;
  }

  SlowRanks::Slow last;

 private:
  std::vector<Pace> paces_;
  SlowRanks ranks_;
  double now_ = 0.0;
};

using Indices = std::vector<std::size_t>;

}  // namespace

TEST_CASE("a rank that is slow in two windows in a row is found once, with its time and its peers'") {
  Race race({0, 0, 0, 0});
  const std::vector<double> steps = {0.1, 0.1, 0.35, 0.12};
  CHECK(race.window(steps).empty());
  CHECK(race.window(steps) == Indices{2});
  CHECK(race.last.busy_seconds == Near(0.35));
  CHECK(race.last.peers_seconds == Near(0.1));
  CHECK(race.window(steps).empty());
  // It recovers, and is slow again.
  CHECK(race.window({0.1, 0.1, 0.1, 0.1}).empty());
  CHECK(race.window(steps).empty());
  CHECK(race.window(steps) == Indices{2});
}

TEST_CASE("one slow window, or less than twice the peers' time, is no slow rank") {
  Race race({0, 0, 0});
  CHECK(race.window({0.1, 0.9, 0.1}).empty());
  CHECK(race.window({0.1, 0.1, 0.1}).empty());
  CHECK(race.window({0.1, 0.19, 0.1}).empty());
  CHECK(race.window({0.1, 0.19, 0.1}).empty());
}

TEST_CASE("only ranks that do the same work are compared") {
  // The last stage computes the logits: both of its ranks take three times as long, and that is no fault.
  Race race({0, 0, 1, 1});
  for (int i = 0; i < 4; ++i) CHECK(race.window({0.1, 0.1, 0.3, 0.3}).empty());
  Race alone({0, 1, 2});
  for (int i = 0; i < 4; ++i) CHECK(alone.window({0.1, 0.5, 9.0}).empty());
}

TEST_CASE("a window has ten steps and five seconds") {
  Race few({0, 0, 0});
  for (int i = 0; i < 9; ++i) CHECK(few.window({0.1, 0.1, 0.9}, 1, 10.0).empty());
  CHECK(few.window({0.1, 0.1, 0.9}, 1, 10.0).empty());  // ends the first
  for (int i = 0; i < 9; ++i) CHECK(few.window({0.1, 0.1, 0.9}, 1, 10.0).empty());
  CHECK(few.window({0.1, 0.1, 0.9}, 1, 10.0) == Indices{2});

  Race brief({0, 0, 0});
  for (int i = 0; i < 9; ++i) CHECK(brief.window({0.1, 0.1, 0.9}, 100, 1.0).empty());
  CHECK(brief.window({0.1, 0.1, 0.9}, 100, 1.0) == Indices{2});
}

}  // namespace scaletrain
