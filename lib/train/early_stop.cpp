#include "train/early_stop.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "train/scalars.h"

namespace scaletrain {

EarlyStopState continue_early_stop(const EarlyStopState& state, const std::optional<EarlyStopConfig>& before,
                                   const std::optional<EarlyStopConfig>& now) {
  if (!before || !now || before->metric != now->metric) return {};
  EarlyStopState next = state;
  const bool is_same =
      before->patience == now->patience && before->min_delta == now->min_delta && before->target == now->target;
  if (!is_same) next.stopped.reset();
  return next;
}

EarlyStopVerdict observe(const EarlyStopConfig& config, EarlyStopState& state, std::int64_t step, double value) {
  EarlyStopVerdict verdict;
  const bool finite = std::isfinite(value);
  if (finite && (!state.best || value < *state.best - config.min_delta)) {
    verdict.improved = true;
    state.best = value;
    state.best_step = step;
    state.without_improvement = 0;
  } else {
    ++state.without_improvement;
  }
  if (finite && config.target && value <= *config.target) {
    verdict.stop = true;
    verdict.reason = fmt::format("{} {:.6g} reached early_stop.target {:.6g}", config.metric, value, *config.target);
  } else if (state.without_improvement >= config.patience) {
    verdict.stop = true;
    verdict.reason =
        state.best
            ? fmt::format("{} has not improved by more than {:.6g} for {} evaluations; best {:.6g} at step {}",
                          config.metric, config.min_delta, state.without_improvement, *state.best, state.best_step)
            : fmt::format("{} was never a finite number in {} evaluations", config.metric, state.without_improvement);
  }
  if (verdict.stop) state.stopped = verdict.reason;
  return verdict;
}

void write_scalars(const EarlyStopState& state, std::map<std::string, std::string>& scalars) {
  if (state.best) put_scalar(scalars, "early_stop.best", *state.best);
  put_scalar(scalars, "early_stop.best_step", state.best_step);
  put_scalar(scalars, "early_stop.without_improvement", state.without_improvement);
  if (state.stopped) scalars["early_stop.stopped"] = *state.stopped;
}

EarlyStopState read_early_stop(const std::map<std::string, std::string>& scalars, const std::string& where) {
  EarlyStopState state;
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
