#include "plan/describe/stage_survey.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/numbers/checked.h"

namespace scaletrain {

namespace {

// Stages times chunks times micro-batches, each about ten instructions: more would take longer than an answer may.
constexpr std::int64_t max_cells = 40'000;
// Short steps show so many where few stages leave room for them: the longer the replay, the closer its rate.
constexpr std::int64_t short_cells = 8'000;

Schedule schedule_of(const PhasePlan& phase, std::int64_t micro_batches) {
  return make_schedule(phase.schedule_kind, phase.mesh.degree(Axis::pipeline), micro_batches, phase.chunks,
                       phase.lowest_backward(phase.table.first_trained_unit()));
}

std::vector<StageSurvey> survey(const PhasePlan& phase, std::int64_t micro_batches, std::size_t workspace) {
  const Schedule schedule = schedule_of(phase, micro_batches);
  std::vector<StageSurvey> stages;
  for (std::size_t stage = 0; stage < schedule.steps.size(); ++stage) {
    const std::vector<ScheduleStep>& steps = schedule.steps[stage];
    const Rank rank = phase.mesh.rank_of({.pipeline = static_cast<std::int64_t>(stage)});
    const ScheduleDepth depth = schedule_depth(steps);
    RankTraffic traffic = phase.traffic(rank, steps);
    stages.push_back({.saved = depth.saved,
                      .deferred_weight_parts = depth.weight_work,
                      .memory = phase.memory(rank, workspace, depth, traffic),
                      .communication = std::move(traffic.volumes)});
  }
  return stages;
}

// `before` is the value one period earlier.
template <class T>
void extend(T& value, T before, std::int64_t repeats) {
  const auto grown = narrow<std::int64_t>(value) - narrow<std::int64_t>(before);
  value = narrow<T>(checked_add(narrow<std::int64_t>(value), checked_mul(grown, repeats)));
}

void extend(StageSurvey& stage, const StageSurvey& before, std::int64_t repeats) {
  extend(stage.saved, before.saved, repeats);
  extend(stage.deferred_weight_parts, before.deferred_weight_parts, repeats);
  SCALETRAIN_CHECK_EQ(stage.memory.items.size(), before.memory.items.size());
  for (std::size_t i = 0; i < stage.memory.items.size(); ++i)
    extend(stage.memory.items[i].bytes, before.memory.items[i].bytes, repeats);
  SCALETRAIN_CHECK_EQ(stage.communication.size(), before.communication.size());
  for (std::size_t i = 0; i < stage.communication.size(); ++i) {
    CommunicationVolume& volume = stage.communication[i];
    const CommunicationVolume& earlier = before.communication[i];
    SCALETRAIN_CHECK(volume.purpose == earlier.purpose && volume.collective == earlier.collective);
    extend(volume.calls, earlier.calls, repeats);
    extend(volume.elements, earlier.elements, repeats);
    extend(volume.bytes, earlier.bytes, repeats);
  }
}

// The time that stages alone need: what lies before a stage's first work, all of its own, and what lies behind its
// last.
double least_time(const PhasePlan& phase, const StageWork& work) {
  const auto degree = static_cast<std::size_t>(phase.mesh.degree(Axis::pipeline));
  const bool is_split = phase.schedule_kind == ScheduleKind::zb_h1;
  double around = 0.0;
  double most = 0.0;
  for (std::size_t stage = 0; stage < degree; ++stage) {
    double own = 0.0;
    for (std::size_t chunk = stage; chunk < work.chunks.size(); chunk += degree) own += work.chunks[chunk].total();
    most = std::max(most, around + own * static_cast<double>(phase.num_micro_batches));
    const WorkCosts& first = work.chunks[stage];
    // A weight part that was put off may be a stage's last work, with nothing behind it.
    around += is_split ? first.forward : first.total();
  }
  return most;
}

double bubble_in(double time, double busy, const PhasePlan& phase) {
  return 1.0 - busy / (static_cast<double>(phase.mesh.degree(Axis::pipeline)) * time);
}

// Long steps only: there are more than two micro-batches for each stage.
std::optional<double> known_bubble_of_equal_stages(const PhasePlan& phase) {
  const auto stages = static_cast<double>(phase.mesh.degree(Axis::pipeline));
  const auto micro_batches = static_cast<double>(phase.num_micro_batches);
  if (phase.schedule_kind == ScheduleKind::zb_h1) return (stages - 1) / (3 * micro_batches + stages - 1);
  if (phase.num_micro_batches % phase.mesh.degree(Axis::pipeline) != 0 && phase.chunks > 1) return std::nullopt;
  return (stages - 1) / (static_cast<double>(phase.chunks) * micro_batches + stages - 1);
}

}  // namespace

ShortStep shorten(const PhasePlan& phase) {
  const std::int64_t stages = phase.mesh.degree(Axis::pipeline);
  const std::int64_t cells_each = checked_mul(stages, phase.chunks);
  const std::int64_t all = phase.num_micro_batches;
  const std::int64_t period = phase.chunks > 1 ? stages : 1;
  if (all <= max_cells / cells_each) return {all, period, 0};
  // The slowest to settle, interleaved, is full after 2P micro-batches, and one period before must be so too.
  const std::int64_t least = std::max(2 * stages + period + 2, short_cells / cells_each);
  const std::int64_t repeats = (all - least) / period;
  if (repeats <= 0) return {all, period, 0};
  return {all - repeats * period, period, repeats};
}

std::vector<StageSurvey> survey_stages(const PhasePlan& phase, const ShortStep& step, std::size_t backend_workspace) {
  std::vector<StageSurvey> stages = survey(phase, step.micro_batches, backend_workspace);
  if (step.repeats == 0) return stages;
  const std::vector<StageSurvey> before = survey(phase, step.micro_batches - step.period, backend_workspace);
  for (std::size_t stage = 0; stage < stages.size(); ++stage) extend(stages[stage], before[stage], step.repeats);
  return stages;
}

StepReplay replay_step(const PhasePlan& phase, const ShortStep& step, const StageWork& work) {
  const Schedule schedule = schedule_of(phase, step.micro_batches);
  const ScheduleCosts costs{.of_chunks = work.chunks};
  StepReplay replay{.timetable = make_timetable(schedule, costs)};
  if (step.repeats == 0) {
    replay.bubble = replay.timetable.simulation.bubble;
    replay.equal_bubble = simulate(schedule, {}).bubble;
    return replay;
  }
  const Schedule before = schedule_of(phase, step.micro_batches - step.period);
  const auto repeats = static_cast<double>(step.repeats);
  const auto extended = [&](double time, double earlier) { return time + repeats * (time - earlier); };
  const double time = extended(replay.timetable.simulation.makespan, simulate(before, costs).makespan);
  double busy = 0.0;
  for (const WorkCosts& chunk : work.chunks) busy += chunk.total() * static_cast<double>(phase.num_micro_batches);
  replay.bubble = bubble_in(std::max(time, least_time(phase, work)), busy, phase);
  if (const auto known = known_bubble_of_equal_stages(phase)) {
    replay.equal_bubble = *known;
  } else {
    const auto virtual_stages = static_cast<double>(schedule.stages * schedule.chunks);
    replay.equal_bubble =
        bubble_in(extended(simulate(schedule, {}).makespan, simulate(before, {}).makespan),
                  virtual_stages * WorkCosts{}.total() * static_cast<double>(phase.num_micro_batches), phase);
  }
  return replay;
}

}  // namespace scaletrain
