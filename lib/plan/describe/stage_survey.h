// What every stage of a plan holds and sends, and how long its step takes, in a time that does not grow with the number
// of micro-batches. Internal to plan.
//
// A long step repeats its middle: once the pipeline is full, a period of micro-batches (one; interleaved goes by groups
// of P) adds the same work, traffic and, with gpipe, saved activations as the one before. So a long step is that of
// fewer micro-batches, with the difference that its last period made added as often as periods are missing. Exact for
// counts and bytes; for the time of stages that differ it is close (see replay_step).
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/schedule/simulate.h"
#include "plan/run_plan.h"
#include "plan/stage_work.h"

namespace scaletrain {

// M micro-batches are `micro_batches` and `repeats` times `period` more. No repeats: the step is looked at as it is.
struct ShortStep {
  std::int64_t micro_batches = 1;
  std::int64_t period = 1;
  std::int64_t repeats = 0;
};
ShortStep shorten(const PhasePlan& phase);

// Of the first rank of a stage.
struct StageSurvey {
  std::int64_t saved = 0;                  // micro-batches (times chunks) whose forward results are held at once
  std::int64_t deferred_weight_parts = 0;  // backwards whose weight part is still to come, at most
  MemoryPlan memory;
  std::vector<CommunicationVolume> communication;
};
std::vector<StageSurvey> survey_stages(const PhasePlan& phase, const ShortStep& step, std::size_t backend_workspace);

struct StepReplay {
  Timetable timetable;        // of the short step
  double bubble = 0.0;        // of the whole one
  double equal_bubble = 0.0;  // if all chunks worked alike
};
// A stage that is slower by little holds the others back only after many micro-batches, perhaps later than the short
// step shows; what it needs for itself bounds the time from below, so that the bubble is off by less than one percent
// of the step.
StepReplay replay_step(const PhasePlan& phase, const ShortStep& step, const StageWork& work);

}  // namespace scaletrain
