#include "launch/coordination/restarts.h"

#include <fmt/format.h>

#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"

namespace scaletrain {
namespace {

// Between two looks at checkpoints that cannot be read: longer than a look takes.
constexpr double look_pause = 1.0;

std::string origin_text(const StartPoint& start) {
  return start.checkpoint ? start.checkpoint->string() : "the initial weights";
}

}  // namespace

Restarts::Restarts(Options options)
    : options_(std::move(options)), policy_(options_.max_restarts, options_.first_step) {}

void Restarts::failed(Failure failure, const StartPoint& before) {
  resume(before, failure.what);
  using Decision = RestartPolicy::Decision;
  const Decision decision = failure.is_lost_place ? policy_.lost_places(failure.step) : policy_.failed(failure.step);
  if (decision == Decision::no_progress) {
    decided_ = Outcome{
        .end = ExitCode::no_progress,
        .reason = failure.is_lost_place
                      ? fmt::format("no progress: nodes were lost {} times at step {}, with no checkpoint beyond "
                                    "it; not started any more. The last time: {}",
                                    RestartPolicy::losses_at_one_step, failure.step, failure.what)
                      : fmt::format("no progress: failed {} times at step {}; not restarted any more. The last "
                                    "time: {}",
                                    RestartPolicy::failures_at_one_step, failure.step, failure.what)};
  } else if (options_.interrupted()) {
    decided_ = Outcome{.end = ExitCode::interrupted,
                       .reason =
                           "workers were lost after the interruption: steps since the last checkpoint will be repeated "
                           "by the next run"};
  }
  failure_ = std::move(failure);
}

void Restarts::resume(const StartPoint& before, const std::string& cause) {
  failure_.reset();
  decided_.reset();
  searching_since_.reset();
  cause_ = cause;
  before_ = before;
}

std::optional<Restarts::Outcome> Restarts::outcome(double now) {
  if (decided_) return decided_;
  if (searching_since_ && options_.interrupted())
    return Outcome{.end = ExitCode::interrupted, .reason = "interrupted while the checkpoints could not be read"};
  // Where nothing is to be restarted, nothing is to be looked for.
  const bool is_search_needed = !failure_ || failure_->is_lost_place || policy_.max_restarts() > 0;
  std::optional<StartPoint> start = is_search_needed ? look_for_start(now) : before_;
  if (!start) return std::nullopt;
  return conclude(std::move(*start));
}

Restarts::Outcome Restarts::conclude(StartPoint start) {
  start.cause = cause_;
  Outcome found{.start = std::move(start)};
  if (!failure_ || failure_->is_lost_place) {
    policy_.resuming(found.start.step);
    if (failure_)
      options_.log.info(fmt::format("going on without, from {}; a lost node uses up no restart ({} of {} are used)",
                                    origin_text(found.start), policy_.used(), policy_.max_restarts()));
    return found;
  }
  if (policy_.restarting(found.start.step) == RestartPolicy::Decision::used_up)
    return {.end = ExitCode::peer,
            .reason = fmt::format("all {} restarts since the furthest checkpoint are used up (supervise.max_restarts). "
                                  "The last failure: {}",
                                  policy_.max_restarts(), cause_)};
  options_.log.info(
      fmt::format("restart {} of {}, from {}", policy_.used(), policy_.max_restarts(), origin_text(found.start)));
  return found;
}

// A network file system that is away for a moment must not end a run that its restarts would save.
std::optional<StartPoint> Restarts::look_for_start(double now) {
  if (searching_since_ && now < next_look_) return std::nullopt;
  const MonotonicTime begin = monotonic_now();
  try {
    return options_.next_start(before_);
  } catch (const FileAccessError& error) {
    if (searching_since_ && now - *searching_since_ >= options_.patience) throw;
    if (!searching_since_) {
      searching_since_ = now;
      options_.log.warn(fmt::format("{}; tried again for {:g} s", error.what(), options_.patience));
    }
  }
  next_look_ = now + seconds_since(begin) + look_pause;
  return std::nullopt;
}

}  // namespace scaletrain
