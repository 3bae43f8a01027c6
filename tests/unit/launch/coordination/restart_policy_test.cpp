#include "launch/coordination/restart_policy.h"

#include <doctest/doctest.h>

namespace scaletrain {

using Decision = RestartPolicy::Decision;

TEST_CASE("restarts without a new checkpoint are used up") {
  RestartPolicy policy(2, 0);
  CHECK(policy.failed(5) == Decision::restart);
  CHECK(policy.restarting(0) == Decision::restart);
  CHECK(policy.failed(6) == Decision::restart);
  CHECK(policy.restarting(0) == Decision::restart);
  CHECK(policy.used() == 2);
  CHECK(policy.failed(7) == Decision::restart);
  CHECK(policy.restarting(0) == Decision::used_up);
}

TEST_CASE("a checkpoint beyond the furthest one forgives the restarts before it") {
  RestartPolicy policy(1, 10);
  for (const int step : {20, 30, 40, 50, 60, 70}) {
    CAPTURE(step);
    CHECK(policy.failed(step + 5) == Decision::restart);
    CHECK(policy.restarting(step) == Decision::restart);
    CHECK(policy.used() == 1);
  }
}

TEST_CASE("an older checkpoint, or the same one again, forgives nothing") {
  RestartPolicy policy(2, 10);
  CHECK(policy.restarting(30) == Decision::restart);
  // The checkpoint of step 30 turned out to be damaged; training came from 20 to 30 once more.
  CHECK(policy.restarting(20) == Decision::restart);
  CHECK(policy.restarting(30) == Decision::used_up);
}

TEST_CASE("a run that begins from a checkpoint is not forgiven for that one") {
  RestartPolicy policy(1, 40);
  CHECK(policy.restarting(40) == Decision::restart);
  CHECK(policy.restarting(40) == Decision::used_up);
}

TEST_CASE("the third failure at one step is no progress, though restarts are left") {
  RestartPolicy policy(100, 0);
  CHECK(policy.failed(7) == Decision::restart);
  CHECK(policy.failed(6) == Decision::restart);
  CHECK(policy.failed(7) == Decision::restart);
  CHECK(policy.failed(7) == Decision::no_progress);
}

TEST_CASE("checkpoints before a step do not forget failures at it; one behind it does") {
  RestartPolicy before(100, 0);
  CHECK(before.failed(7) == Decision::restart);
  CHECK(before.restarting(5) == Decision::restart);
  CHECK(before.failed(7) == Decision::restart);
  // Of step 7 itself: what fails at step 7 fails after it.
  CHECK(before.restarting(7) == Decision::restart);
  CHECK(before.failed(7) == Decision::no_progress);

  RestartPolicy behind(100, 0);
  CHECK(behind.failed(7) == Decision::restart);
  CHECK(behind.failed(7) == Decision::restart);
  CHECK(behind.restarting(8) == Decision::restart);
  CHECK(behind.failed(7) == Decision::restart);
  CHECK(behind.failed(7) == Decision::restart);
  CHECK(behind.failed(7) == Decision::no_progress);
}

TEST_CASE("without restarts the first is one too many") {
  RestartPolicy policy(0, 0);
  CHECK(policy.failed(1) == Decision::restart);
  CHECK(policy.restarting(0) == Decision::used_up);
}

TEST_CASE("lost nodes take nothing from the budget, and a checkpoint behind them is progress as any") {
  RestartPolicy policy(1, 0);
  for (const int step : {3, 4, 5, 6, 7}) {
    CHECK(policy.lost_places(step) == Decision::restart);
    policy.resuming(0);
  }
  CHECK(policy.used() == 0);
  CHECK(policy.failed(8) == Decision::restart);
  CHECK(policy.restarting(0) == Decision::restart);
  CHECK(policy.used() == 1);
  CHECK(policy.lost_places(12) == Decision::restart);
  policy.resuming(10);
  CHECK(policy.used() == 0);
}

TEST_CASE("the tenth loss at one step is no progress, unless a checkpoint lies between") {
  for (const bool has_progress : {false, true}) {
    RestartPolicy policy(0, 0);
    for (int loss = 1; loss < RestartPolicy::losses_at_one_step; ++loss) {
      CHECK(policy.lost_places(7) == Decision::restart);
      policy.resuming(has_progress && loss == 5 ? 8 : 0);
    }
    CHECK(policy.lost_places(7) == (has_progress ? Decision::restart : Decision::no_progress));
  }
}

}  // namespace scaletrain
