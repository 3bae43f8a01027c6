// Long steps looked at through shorter ones, against looking at all of them.
#include "plan/describe/stage_survey.h"

#include <cmath>

#include "plan_helpers.h"
#include "support/sanitizers.h"

using namespace scaletrain;

namespace {

PhasePlan plan_of(ScheduleKind kind, std::int64_t stages, std::int64_t chunks, std::int64_t micro_batches, int zero) {
  Config config = planned_config();
  config.model.layers = 13;  // stages differ
  config.parallel.schedule = kind;
  config.parallel.pipeline = stages;
  config.parallel.chunks = chunks;
  config.parallel.data = zero > 0 ? 2 : 1;
  config.parallel.tensor = 2;
  config.parallel.sequence = true;
  config.parallel.zero = zero;
  config.train.micro_batch = 1;
  config.train.global_batch = micro_batches * *config.parallel.data;
  return make_run_plan(config, 61, std::nullopt).phases.front();
}

// As shorten() would for a pipeline so deep that nothing more fits.
ShortStep shortest(const PhasePlan& phase) {
  const std::int64_t stages = phase.mesh.degree(Axis::pipeline);
  const std::int64_t period = phase.chunks > 1 ? stages : 1;
  const std::int64_t repeats = (phase.num_micro_batches - (2 * stages + period + 2)) / period;
  return {phase.num_micro_batches - repeats * period, period, repeats};
}

struct Case {
  ScheduleKind kind;
  std::int64_t stages;
  std::int64_t chunks;
};
const Case cases[] = {{ScheduleKind::gpipe, 1, 1},       {ScheduleKind::gpipe, 4, 1},
                      {ScheduleKind::one_f_one_b, 1, 1}, {ScheduleKind::one_f_one_b, 2, 1},
                      {ScheduleKind::one_f_one_b, 5, 1}, {ScheduleKind::zb_h1, 2, 1},
                      {ScheduleKind::zb_h1, 5, 1},       {ScheduleKind::interleaved, 2, 3},
                      {ScheduleKind::interleaved, 4, 3}, {ScheduleKind::interleaved, 1, 2}};

}  // namespace

TEST_CASE("what stages hold and send in a long step is exactly what the whole schedule says") {
  for (const Case& each : cases)
    for (const int zero : {0, 1, 2, 3})
      for (const std::int64_t micro_batches : is_sanitized ? std::vector{47} : std::vector{47, 60}) {
        const PhasePlan phase = plan_of(each.kind, each.stages, each.chunks, micro_batches, zero);
        CAPTURE(each.stages);
        CAPTURE(each.chunks);
        CAPTURE(zero);
        CAPTURE(micro_batches);
        REQUIRE(phase.num_micro_batches == micro_batches);
        const ShortStep step = shortest(phase);
        REQUIRE(step.repeats > 0);
        REQUIRE(step.micro_batches + step.repeats * step.period == micro_batches);
        const std::vector<StageSurvey> stages = survey_stages(phase, step, 3);
        REQUIRE(stages.size() == static_cast<std::size_t>(each.stages));
        for (std::int64_t stage = 0; stage < each.stages; ++stage) {
          const Rank rank = phase.mesh.rank_of({.pipeline = stage});
          const StageSurvey& survey = stages[static_cast<std::size_t>(stage)];
          const MemoryPlan memory = phase.memory(rank, 3);
          REQUIRE(survey.memory.items.size() == memory.items.size());
          for (std::size_t i = 0; i < memory.items.size(); ++i) {
            CAPTURE(memory.items[i].purpose);
            CHECK(survey.memory.items[i].bytes == memory.items[i].bytes);
          }
          const std::vector<CommunicationVolume> volumes = phase.communication(rank);
          REQUIRE(survey.communication.size() == volumes.size());
          for (std::size_t i = 0; i < volumes.size(); ++i) {
            CAPTURE(volumes[i].purpose);
            CHECK(survey.communication[i].calls == volumes[i].calls);
            CHECK(survey.communication[i].elements == volumes[i].elements);
            CHECK(survey.communication[i].bytes == volumes[i].bytes);
          }
          const ScheduleDepth depth = schedule_depth(phase.schedule(rank));
          CHECK(survey.saved == depth.saved);
          CHECK(survey.deferred_weight_parts == depth.weight_work);
        }
      }
}

TEST_CASE("the bubble of a long step is that of its whole replay") {
  for (const Case& each : cases)
    for (const std::int64_t micro_batches : {60, 150, 401}) {
      const PhasePlan phase = plan_of(each.kind, each.stages, each.chunks, micro_batches, 0);
      CAPTURE(each.stages);
      CAPTURE(each.chunks);
      CAPTURE(micro_batches);
      const StageWork work = stage_work(phase);
      const StepReplay whole = replay_step(phase, {.micro_batches = micro_batches}, work);
      const StepReplay extended = replay_step(phase, shortest(phase), work);
      // All alike: the same bubble, but for rounding.
      CHECK(std::abs(extended.equal_bubble - whole.equal_bubble) < 1e-9);
      CHECK(std::abs(extended.bubble - whole.bubble) < 0.01);
      CHECK(whole.bubble >= -1e-9);
    }
}

TEST_CASE("only steps too long to look at are shortened, and never below a full pipeline") {
  const PhasePlan small = plan_of(ScheduleKind::one_f_one_b, 4, 1, 500, 0);
  CHECK(shorten(small).repeats == 0);
  CHECK(shorten(small).micro_batches == 500);
  for (const Case& each : cases) {
    const PhasePlan phase = plan_of(each.kind, each.stages, each.chunks, 50'001, 0);
    const ShortStep step = shorten(phase);
    CHECK(step.repeats > 0);
    CHECK(step.micro_batches + step.repeats * step.period == 50'001);
    CHECK(step.micro_batches - step.period > 2 * each.stages);
    CHECK(step.micro_batches <= 8'000 + each.stages);
  }
}
