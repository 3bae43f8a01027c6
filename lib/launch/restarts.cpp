#include "launch/restarts.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"

namespace scaletrain {
namespace {

std::string origin_text(const StartPoint& start) {
  return start.checkpoint ? start.checkpoint->string() : "the initial weights";
}

}  // namespace

Restarts::Restarts(Options options)
    : options_(std::move(options)), policy_(options_.max_restarts, options_.first_step) {}

Restarts::Outcome Restarts::after(const Failure& failure, const StartPoint& before) {
  using Decision = RestartPolicy::Decision;
  const Decision decision = failure.is_lost_node ? policy_.lost_nodes(failure.step) : policy_.failed(failure.step);
  if (decision == Decision::no_progress)
    return {.end = ExitCode::no_progress,
            .reason = failure.is_lost_node
                          ? fmt::format("no progress: nodes were lost {} times at step {}, with no checkpoint beyond "
                                        "it; not started any more. The last time: {}",
                                        RestartPolicy::losses_at_one_step, failure.step, failure.what)
                          : fmt::format("no progress: failed {} times at step {}; not restarted any more. The last "
                                        "time: {}",
                                        RestartPolicy::failures_at_one_step, failure.step, failure.what)};
  if (options_.interrupted())
    return {.end = ExitCode::interrupted,
            .reason =
                "workers were lost after the interruption: steps since the last checkpoint will be repeated by "
                "the next run"};
  if (failure.is_lost_node) {
    Outcome outcome{.start = resume(before, failure.what)};
    options_.log.info(fmt::format("going on without, from {}; a lost node uses up no restart ({} of {} are used)",
                                  origin_text(outcome.start), policy_.used(), policy_.max_restarts()));
    return outcome;
  }
  Outcome outcome{.start = policy_.max_restarts() > 0 ? next_start(before) : before};
  outcome.start.cause = failure.what;
  if (policy_.restarting(outcome.start.step) == Decision::used_up)
    return {.end = ExitCode::peer,
            .reason = fmt::format("all {} restarts since the furthest checkpoint are used up (supervise.max_restarts); "
                                  "run again to go on from the newest checkpoint, if there is one. The last failure: "
                                  "{}",
                                  policy_.max_restarts(), failure.what)};
  options_.log.info(
      fmt::format("restart {} of {}, from {}", policy_.used(), policy_.max_restarts(), origin_text(outcome.start)));
  return outcome;
}

StartPoint Restarts::resume(const StartPoint& before, const std::string& cause) {
  StartPoint start = next_start(before);
  start.cause = cause;
  policy_.resuming(start.step);
  return start;
}

// A network file system that is away for a moment must not end a run that its restarts would save.
StartPoint Restarts::next_start(const StartPoint& before) const {
  constexpr auto pause = std::chrono::milliseconds(100);
  const MonotonicTime begin = monotonic_now();
  bool is_told = false;
  for (;;) {
    try {
      return options_.next_start(before);
    } catch (const FileAccessError& error) {
      if (seconds_since(begin) >= options_.patience || options_.interrupted()) throw;
      if (!is_told) options_.log.warn(fmt::format("{}; tried again for {:g} s", error.what(), options_.patience));
      is_told = true;
    }
    // Longer between two tries than the tries take.
    for (int i = 0; i < 10 && !options_.interrupted(); ++i) std::this_thread::sleep_for(pause);
  }
}

}  // namespace scaletrain
