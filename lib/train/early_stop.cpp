#include "train/early_stop.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "train/step/scalars.h"

namespace scaletrain {

namespace {

// As far as the configs say; the files themselves are known when they are opened.
bool evaluate_alike(const Config& a, const Config& b) {
  const TaskConfig* const task_of_a = watched_task(a);
  const TaskConfig* const task_of_b = watched_task(b);
  if (task_of_a != nullptr && task_of_b != nullptr) return task_of_a->path == task_of_b->path;
  const ValidationConfig* const of_a = watched_set(a);
  const ValidationConfig* const of_b = watched_set(b);
  if (of_a == nullptr || of_b == nullptr) return of_a == of_b;
  return of_a->path == of_b->path && of_a->type == of_b->type && of_a->field == of_b->field &&
         of_a->separator == of_b->separator && a.data.documents.loss_across == b.data.documents.loss_across &&
         a.data.documents.attention == b.data.documents.attention && a.evaluate.batches == b.evaluate.batches &&
         a.train.global_batch == b.train.global_batch;
}

}  // namespace

const ValidationConfig* watched_set(const Config& config) {
  if (!config.early_stop) return nullptr;
  for (const ValidationConfig& set : config.data.validation)
    if (config.early_stop->metric == "validation/" + set.name + "/loss") return &set;
  return nullptr;
}

const TaskConfig* watched_task(const Config& config) {
  if (!config.early_stop) return nullptr;
  for (const TaskConfig& task : config.evaluate.tasks)
    if (config.early_stop->metric == "task/" + task.name + "/accuracy") return &task;
  return nullptr;
}

EarlyStopState continue_early_stop(const EarlyStopState& state, const Config& before, const Config& now) {
  if (!before.early_stop || !now.early_stop || before.early_stop->metric != now.early_stop->metric) return {};
  EarlyStopState next = state;
  const EarlyStopConfig& was = *before.early_stop;
  const EarlyStopConfig& is = *now.early_stop;
  const bool is_same = was.patience == is.patience && was.min_delta == is.min_delta && was.target == is.target;
  if (!is_same || !evaluate_alike(before, now)) next.stopped.reset();
  return next;
}

std::optional<std::string> measure_on(const MeasuredOn& data, EarlyStopState& state) {
  const std::optional<MeasuredOn> before = state.measured_on;
  const EarlyStopState old = before && *before != data ? std::exchange(state, EarlyStopState()) : state;
  state.measured_on = data;
  if (!before || *before == data) return std::nullopt;
  const std::string change =
      before->data == data.data
          ? fmt::format("over {} samples, before over {} (evaluate.batches or train.global_batch changed)",
                        data.samples, before->samples)
          : std::string(
                "over other data than before (the set's files, how they are read, the tokenizer or evaluate.ema "
                "changed)");
  const std::string best = old.best ? fmt::format(": the best so far, {:.6g} at step {}, cannot be compared with it",
                                                  *old.best, old.best_step)
                                    : "";
  return fmt::format("it is now measured {}, so early stopping starts afresh{}", change, best);
}

EarlyStopVerdict observe(const EarlyStopConfig& config, EarlyStopState& state, std::int64_t step, double value) {
  EarlyStopVerdict verdict;
  const bool finite = std::isfinite(value);
  const bool more_is_better = config.metric.starts_with("task/");
  const auto improves = [&](double best) {
    return more_is_better ? value > best + config.min_delta : value < best - config.min_delta;
  };
  const auto reaches = [&](double target) { return more_is_better ? value >= target : value <= target; };
  if (finite && (!state.best || improves(*state.best))) {
    verdict.improved = true;
    state.best = value;
    state.best_step = step;
    state.without_improvement = 0;
  } else {
    ++state.without_improvement;
  }
  if (finite && config.target && reaches(*config.target)) {
    verdict.stop = true;
    verdict.reason = fmt::format("{} {:.6g} reached early_stop.target {:.6g}", config.metric, value, *config.target);
  } else if (state.without_improvement >= config.patience) {
    verdict.stop = true;
    verdict.reason = state.best
                         ? fmt::format("{} has not improved by more than {:.6g} for {}; best {:.6g} at step {}",
                                       config.metric, config.min_delta,
                                       counted(state.without_improvement, "evaluation"), *state.best, state.best_step)
                         : fmt::format("{} was never a finite number in {}", config.metric,
                                       counted(state.without_improvement, "evaluation"));
  }
  if (verdict.stop) state.stopped = verdict.reason;
  return verdict;
}

void write_scalars(const EarlyStopState& state, std::map<std::string, std::string>& scalars) {
  if (state.measured_on) {
    scalars["early_stop.data"] = to_hex(state.measured_on->data);
    put_scalar(scalars, "early_stop.samples", state.measured_on->samples);
  }
  if (state.best) put_scalar(scalars, "early_stop.best", *state.best);
  put_scalar(scalars, "early_stop.best_step", state.best_step);
  put_scalar(scalars, "early_stop.without_improvement", state.without_improvement);
  if (state.stopped) scalars["early_stop.stopped"] = *state.stopped;
}

EarlyStopState read_early_stop(const std::map<std::string, std::string>& scalars, const std::string& where) {
  EarlyStopState state;
  if (const auto data = scalars.find("early_stop.data"); data != scalars.end()) {
    MeasuredOn& measured_on = state.measured_on.emplace();
    if (!from_hex(data->second, measured_on.data))
      throw InputError(
          fmt::format("{}: scalar \"early_stop.data\" is {}, expected a hash", where, quoted(data->second)));
    measured_on.samples = get_integer(scalars, "early_stop.samples", where);
  }
  if (has_scalar(scalars, "early_stop.best")) state.best = get_double(scalars, "early_stop.best", where);
  state.best_step = get_integer(scalars, "early_stop.best_step", where);
  state.without_improvement = get_integer(scalars, "early_stop.without_improvement", where);
  if (state.best_step < 0 || state.without_improvement < 0 || (state.best && !std::isfinite(*state.best)))
    throw InputError(
        fmt::format("{}: scalars early_stop.*: best {} at step {}, {} evaluations since are no possible state", where,
                    state.best.value_or(0.0), state.best_step, state.without_improvement));
  const auto stopped = scalars.find("early_stop.stopped");
  if (stopped != scalars.end()) state.stopped = stopped->second;
  return state;
}

}  // namespace scaletrain
