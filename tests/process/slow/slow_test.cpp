// A run that gets further is not hung, however long one rank waits for another.
#include <doctest/doctest.h>

#include <string>

#include "process/ranks.h"

namespace scaletrain {
namespace {

// Two stages of 40 layers. Each product of the first stage takes 40 ms, a layer about a second, and its forward pass of
// the one micro-batch longer than ten heartbeats. Long enough for a machine that lets a process wait for two seconds.
constexpr double heartbeat = 3.0;
constexpr double slow_seconds = 33.0;
static_assert(slow_seconds > 10 * heartbeat);

Launch slow_first_stage(const std::string& run) {
  return slowed(layout_launch(run, {"model.layers=80", "parallel.pipeline=2", "train.steps=2",
                                    "train.lr_schedule.warmup=1", "train.global_batch=2", "train.micro_batch=2",
                                    "evaluate={every: 0}", "supervise={heartbeat: 3s, max_restarts: 0}"}),
                40.0, slow_seconds);
}

}  // namespace

TEST_CASE("a stage whose layers take longer together than ten heartbeats, and each far less than one, is waited for") {
  const Ended end = run_program(slow_first_stage("deep-stage"), ranks_patience);
  CHECK_MESSAGE(end.exit_code == 0, end.errors);
  CHECK(end.seconds > slow_seconds);
  CHECK(trajectory_of(layout_folder("deep-stage")).last_step() == 2);
}

}  // namespace scaletrain
