#include "optim/lr_schedule.h"

#include <doctest/doctest.h>

#include <cmath>

#include "base/error.h"
#include "support/near.h"

using namespace scaletrain;

TEST_CASE("warm-up rises linearly, is never zero and reaches the peak at its last update") {
  const LrScheduleConfig config{.type = LrScheduleKind::cosine, .warmup = 4, .min_ratio = 0.1};
  CHECK(learning_rate(config, 8.0, 1, 10) == 2.0);
  CHECK(learning_rate(config, 8.0, 2, 10) == 4.0);
  CHECK(learning_rate(config, 8.0, 3, 10) == 6.0);
  CHECK(learning_rate(config, 8.0, 4, 10) == 8.0);
}

TEST_CASE("cosine and linear pass their middle half way and end at min_ratio") {
  LrScheduleConfig config{.type = LrScheduleKind::cosine, .warmup = 10, .min_ratio = 0.2};
  CHECK(learning_rate(config, 1.0, 60, 110) == Near(0.6));  // half way: the mean of 1 and 0.2
  // A quarter of the way: cos(pi/4) = 0.70710678.
  CHECK(learning_rate(config, 1.0, 35, 110) == Near(0.2 + 0.8 * (1 + 0.70710678118654752) / 2).epsilon(1e-12));
  CHECK(learning_rate(config, 1.0, 110, 110) == Near(0.2).epsilon(1e-15));
  config.type = LrScheduleKind::linear;
  CHECK(learning_rate(config, 1.0, 60, 110) == Near(0.6));
  CHECK(learning_rate(config, 1.0, 35, 110) == Near(0.8));
  CHECK(learning_rate(config, 1.0, 110, 110) == Near(0.2).epsilon(1e-15));
  config.type = LrScheduleKind::constant;
  CHECK(learning_rate(config, 1.0, 110, 110) == 1.0);
}

TEST_CASE("decays fall strictly and never below the end, also past it") {
  for (const LrScheduleKind kind : {LrScheduleKind::cosine, LrScheduleKind::linear}) {
    const LrScheduleConfig config{.type = kind, .warmup = 3, .min_ratio = 0.0};
    for (std::int64_t update = 4; update <= 50; ++update)
      CHECK(learning_rate(config, 1.0, update, 50) < learning_rate(config, 1.0, update - 1, 50));
    CHECK(learning_rate(config, 1.0, 50, 50) == Near(0.0));
    CHECK(learning_rate(config, 1.0, 51, 50) == learning_rate(config, 1.0, 50, 50));
  }
}

TEST_CASE("no warm-up starts at the peak; a warm-up as long as the run, or longer, is all there is") {
  LrScheduleConfig config{.type = LrScheduleKind::cosine, .warmup = 0, .min_ratio = 0.1};
  CHECK(learning_rate(config, 3.0, 1, 10) == 3.0);
  CHECK(learning_rate(config, 3.0, 10, 10) == Near(0.3));
  CHECK(learning_rate(config, 3.0, 1, 1) == 3.0);
  config.warmup = 10;
  CHECK(learning_rate(config, 3.0, 10, 10) == 3.0);
  CHECK(learning_rate(config, 3.0, 5, 10) == 1.5);
  config.warmup = 20;
  CHECK(learning_rate(config, 3.0, 10, 10) == 1.5);
}

TEST_CASE("a decay is at the end of the run, as long as it is said to be, and at most all that warm-up leaves") {
  LrScheduleConfig config{.type = LrScheduleKind::wsd, .warmup = 10, .min_ratio = 0.1, .decay_steps = 20};
  CHECK(learning_rate(config, 1.0, 80, 100) == 1.0);
  CHECK(learning_rate(config, 1.0, 81, 100) == Near(1.0 - 0.9 / 20).epsilon(1e-15));
  CHECK(learning_rate(config, 1.0, 100, 100) == Near(0.1).epsilon(1e-15));
  config.decay_steps.reset();
  config.decay_share = 0.2;
  CHECK(learning_rate(config, 1.0, 81, 100) == Near(1.0 - 0.9 / 20).epsilon(1e-14));
  config.decay_share = 1.0;
  CHECK(learning_rate(config, 1.0, 10, 100) == 1.0);
  CHECK(learning_rate(config, 1.0, 55, 100) == Near(0.55).epsilon(1e-14));
}

TEST_CASE("a run that is made longer leaves its decay, and one in cycles stays where it was") {
  const LrScheduleConfig wsd{.type = LrScheduleKind::wsd, .warmup = 10, .min_ratio = 0.0, .decay_steps = 20};
  CHECK(learning_rate(wsd, 1.0, 95, 100) < 0.5);
  CHECK(learning_rate(wsd, 1.0, 95, 200) == 1.0);
  const LrScheduleConfig cycles{
      .type = LrScheduleKind::cosine_restarts, .warmup = 10, .min_ratio = 0.0, .restart_steps = 30};
  CHECK(learning_rate(cycles, 1.0, 95, 100) == learning_rate(cycles, 1.0, 95, 200));
  CHECK(learning_rate(cycles, 1.0, 40, 100) == 1.0);  // the second begins
}

// Of a run in tokens: the same lengths in samples, to the bit.
TEST_CASE("a way in samples has the learning rates of the way in updates") {
  for (const LrScheduleKind kind : {LrScheduleKind::inverse_sqrt, LrScheduleKind::wsd, LrScheduleKind::cosine_restarts})
    for (const std::int64_t batch : {3, 8, 48}) {
      const LrScheduleConfig config{.type = kind, .warmup = 7, .min_ratio = 0.05, .restart_steps = 9};
      for (std::int64_t update = 8; update <= 60; ++update) {
        const ScheduleWay way{.done = static_cast<double>((update - 7) * batch),
                              .whole = static_cast<double>(53 * batch),
                              .warmup = static_cast<double>(7 * batch),
                              .update = static_cast<double>(batch)};
        CHECK(decayed_rate(config, 0.7, way) == learning_rate(config, 0.7, update, 60));
      }
    }
}

TEST_CASE("what no update is has no learning rate") {
  CHECK_THROWS_AS(learning_rate({}, 1.0, 0, 10), BugError);
}
