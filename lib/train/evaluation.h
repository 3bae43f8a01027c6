// The loss on the validation sets during training: the mean over the unmasked tokens of the first so many samples of
// each set, the same samples every time and on every layout.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/tasks/choice_task.h"
#include "plan/run_plan.h"
#include "train/run_state.h"
#include "train/step/step_runner.h"

namespace scaletrain {

struct SetLoss {
  std::string dataset;
  double loss = 0.0;        // nats per token
  std::int64_t tokens = 0;  // unmasked
  std::int64_t samples = 0;
};

// Whole micro-batches are dealt out to the replicas by turns, so that every layout sees the same ones; replicas that
// get fewer run empty ones. Every rank calls this, with the same sets, and gets the same answer. max_samples: per set,
// 0: all. InputError if a set has no unmasked token. Nothing where a rank's `wants_to_stop`, asked again and again,
// said yes: sets may be large, and a run that is to leave has little time.
std::optional<std::vector<SetLoss>> evaluate_sets(StepRunner& runner, const PhasePlan& plan, Rank rank,
                                                  std::span<const std::unique_ptr<ValidationSet>> sets,
                                                  std::int64_t max_samples,
                                                  const std::function<bool()>& wants_to_stop = {});

struct TaskResult {
  std::string task;
  TaskScore score;
  std::vector<double> log_likelihoods;  // of each row, in nats
};

// The accuracy on each task, of all its questions, the same on every layout but for rounding. Every rank calls this,
// with the same tasks, and gets the same answer. Nothing as for evaluate_sets().
std::optional<std::vector<TaskResult>> evaluate_tasks(StepRunner& runner, const PhasePlan& plan, Rank rank,
                                                      std::span<const std::unique_ptr<ChoiceTask>> tasks,
                                                      const std::function<bool()>& wants_to_stop = {});

// Whether a run has anything to evaluate.
bool has_evaluations(const Config& config);

// The samples of each set that an evaluation takes at most; 0: all.
std::int64_t max_evaluated(const Config& config);

// What the loss of a set is the mean over.
MeasuredOn measured_on(const ValidationSet& set, const Config& config);
// Early stopping goes by this set from here on: if that is not what it was measured on, its state starts afresh, and
// the text (for people) says so.
std::optional<std::string> measure_set(const ValidationSet& set, const Config& config, RunState& state);

// The same of a task.
MeasuredOn measured_on(const ChoiceTask& task, const Config& config);
std::optional<std::string> measure_task(const ChoiceTask& task, const Config& config, RunState& state);

}  // namespace scaletrain
