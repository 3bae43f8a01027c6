#include "optim/adaptive_batch.h"

#include <doctest/doctest.h>

#include "base/error.h"

using namespace scaletrain;

namespace {

constexpr BatchAutoConfig bounds{.min = 8, .max = 64, .every = 10};

std::int64_t after_ten_steps(std::int64_t batch, std::optional<double> scale) {
  return adapted_batch(bounds, 10, batch, scale);
}

}  // namespace

TEST_CASE("a batch is doubled up to the noise scale and halved where it is twice above it") {
  CHECK(after_ten_steps(16, 32.0) == 32);
  CHECK(after_ten_steps(16, 31.9) == 16);
  CHECK(after_ten_steps(16, 8.0) == 16);
  CHECK(after_ten_steps(16, 7.9) == 8);
  // One step at a time, however far the scale is.
  CHECK(after_ten_steps(8, 1e9) == 16);
  CHECK(after_ten_steps(64, 1e-9) == 32);
}

TEST_CASE("a batch stays within its bounds, and where the scale is not known") {
  CHECK(after_ten_steps(64, 1e9) == 64);
  CHECK(after_ten_steps(8, 1e-9) == 8);
  CHECK(after_ten_steps(16, std::nullopt) == 16);
  CHECK_THROWS_AS(after_ten_steps(128, 1.0), BugError);
}

TEST_CASE("a batch changes behind every so many steps alone") {
  for (std::int64_t step = 1; step <= 30; ++step)
    CHECK(adapted_batch(bounds, step, 8, 1e9) == (step % 10 == 0 ? 16 : 8));
}

// A scale between the two thresholds moves a batch neither way, and behind a change neither threshold is met.
TEST_CASE("a batch that has come to a size stays there until the scale has moved by two") {
  for (const double scale : {20.0, 31.0, 32.0, 45.0, 63.0, 64.0, 100.0}) {
    CAPTURE(scale);
    std::int64_t from_below = 8;
    std::int64_t from_above = 64;
    for (int decision = 0; decision < 5; ++decision) {
      from_below = after_ten_steps(from_below, scale);
      from_above = after_ten_steps(from_above, scale);
    }
    CHECK(after_ten_steps(from_below, scale) == from_below);
    CHECK(static_cast<double>(from_below) <= scale);
    CHECK(after_ten_steps(from_above, scale) == from_above);
    CHECK(static_cast<double>(from_above) <= 2 * scale);
  }
}

TEST_CASE("a run begins with the least batch and goes on with its own, or the nearest that is among the sizes") {
  TrainConfig train;
  CHECK_FALSE(continue_batch(16, train).has_value());
  train.adapts_batch = true;
  train.batch_auto = bounds;
  CHECK(continue_batch(std::nullopt, train) == 8);
  for (const std::int64_t batch : {8, 16, 32, 64}) CHECK(continue_batch(batch, train) == batch);
  CHECK(continue_batch(4, train) == 8);
  CHECK(continue_batch(48, train) == 32);
  CHECK(continue_batch(512, train) == 64);
}
