// For how much work of others a rank may have to wait, against replays of whole schedules.
#include "plan/longest_wait.h"

#include <vector>

#include "parallel/schedule/simulate.h"
#include "plan_helpers.h"

using namespace scaletrain;

namespace {

// Each pass through a unit takes one unit of time, as if every piece of work took as long as the slowest may.
double makespan_in_pieces(const PhasePlan& plan) {
  std::vector<WorkCosts> costs;
  for (std::size_t chunk = 0; chunk < plan.stages.size(); ++chunk) {
    const auto degree = static_cast<std::size_t>(plan.mesh.degree(Axis::pipeline));
    const auto units = static_cast<double>(
        plan.units_of_chunk(static_cast<std::int64_t>(chunk % degree), static_cast<std::int64_t>(chunk / degree))
            .size());
    // What is computed again is a piece of the input part.
    costs.push_back({units, plan.recompute == RecomputeKind::none ? units : 2 * units, units});
  }
  const Schedule schedule =
      make_schedule(plan.schedule_kind, plan.mesh.degree(Axis::pipeline), plan.num_micro_batches, plan.chunks);
  const Simulation simulation = simulate(schedule, {.of_chunks = costs}, TransferModel::blocking);
  REQUIRE(simulation.completed);
  return simulation.makespan;
}

PhasePlan plan_of(std::int64_t stages, ScheduleKind kind, std::int64_t chunks, std::int64_t batch,
                  RecomputeKind recompute = RecomputeKind::none) {
  Config config = planned_config();
  config.model.layers = 12;
  config.parallel.pipeline = stages;
  config.parallel.schedule = kind;
  config.parallel.chunks = chunks;
  config.train.global_batch = batch;
  config.train.micro_batch = 1;
  config.train.recompute = recompute;
  return make_run_plan(config, 61, std::nullopt).phases.front();
}

}  // namespace

TEST_CASE("no rank waits for more pieces of work than is said, whatever the schedule") {
  for (const std::int64_t stages : {1, 2, 3, 4, 6}) {
    for (const std::int64_t batch : {1, 2, 12}) {
      CAPTURE(stages);
      CAPTURE(batch);
      for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::zb_h1}) {
        for (const RecomputeKind recompute : {RecomputeKind::none, RecomputeKind::full}) {
          const PhasePlan plan = plan_of(stages, kind, 1, batch, recompute);
          CHECK(static_cast<double>(longest_wait(plan)) >= makespan_in_pieces(plan));
        }
      }
    }
    const PhasePlan plan = plan_of(stages, ScheduleKind::interleaved, 2, 12);
    CHECK(static_cast<double>(longest_wait(plan)) >= makespan_in_pieces(plan));
  }
}

TEST_CASE("a deeper stage and more micro-batches are waited for longer, in proportion") {
  Config config = planned_config();
  config.model.layers = 120;
  config.parallel.pipeline = 2;
  config.train.global_batch = 1;
  config.train.micro_batch = 1;
  const auto wait_of = [&config] { return longest_wait(make_run_plan(config, 61, std::nullopt).phases.front()); };
  const std::int64_t one = wait_of();
  // The other stage's 60 layers and more, there and back.
  CHECK(one >= 3 * 60);
  // No more than all passes of both stages, an evaluation part through the larger one, and the tensors.
  CHECK(one < 3 * 2 * 61 + 10 * 61 + 2 * (120 * 16 + 6));
  config.train.global_batch = 64;
  const std::int64_t many = wait_of();
  CHECK(many >= 64 * 3 * 60);
  config.train.micro_batch = 64;
  CHECK(wait_of() == one);
}
