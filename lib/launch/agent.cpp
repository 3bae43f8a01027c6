#include "launch/agent.h"

#include <fmt/format.h>

#include "base/error.h"
#include "launch/restart_policy.h"

namespace scaletrain {
namespace {

// Whose error it is: a rank's, whose name is in it, or that of all.
std::string message_of(const Attempt& attempt) {
  return fmt::format("{}{}", attempt.is_alike ? "all ranks: " : "", attempt.message.value_or(""));
}

void log_attempt(Log& log, const Attempt& attempt, bool is_failure) {
  if (attempt.message) log.error(message_of(attempt));
  if (is_failure) {
    log.error(attempt.description);
  } else {
    log.info(attempt.description);
  }
}

}  // namespace

ExitCode run_agent(const AgentOptions& options) {
  SCALETRAIN_CHECK(options.heartbeat > 0 && options.max_restarts >= 0 && options.world >= 1);
  using Decision = RestartPolicy::Decision;
  StartPoint start = options.start;
  RestartPolicy policy(options.max_restarts, start.step);
  std::optional<MonotonicTime> failed_at;
  for (;;) {
    if (options.interrupts.interrupted()) {
      options.log.info("interrupted while no worker was running: run again to go on");
      return ExitCode::interrupted;
    }
    CrewOptions crew = crew_options(options, start);
    crew.failed_before = failed_at;
    require_lock(crew);
    const Attempt attempt = run_crew(crew);
    if (attempt.result) {
      log_attempt(options.log, attempt,
                  *attempt.result != ExitCode::finished && *attempt.result != ExitCode::interrupted);
      return *attempt.result;
    }
    if (!attempt.started) return ExitCode::interrupted;
    failed_at = attempt.failed_at;
    log_attempt(options.log, attempt, true);
    if (policy.failed(attempt.step) == Decision::no_progress) {
      options.log.error(fmt::format(
          "no progress: {} failed {} times at step {}; not restarted any more. The last time: "
          "{}{}{}. More is in the logs in {}",
          options.world == 1 ? "the worker" : "the workers", RestartPolicy::failures_at_one_step, attempt.step,
          attempt.description, attempt.message ? ": " : "", message_of(attempt), options.paths.logs().string()));
      return ExitCode::no_progress;
    }
    if (options.interrupts.interrupted()) {
      options.log.warn(
          "the worker was lost after the interruption: steps since the last checkpoint will be repeated by the next "
          "run");
      return ExitCode::interrupted;
    }
    const Report report = [&options](const std::string& text) { options.log.warn(text); };
    // Without restarts nothing is to be looked for, or set aside.
    if (options.max_restarts > 0)
      start = options.next_start ? options.next_start(start) : restart_point(options.paths, start, report);
    if (policy.restarting(start.step) == Decision::used_up) {
      options.log.error(fmt::format(
          "all {} restarts since the furthest checkpoint are used up (supervise.max_restarts); run again to "
          "go on from the newest checkpoint, if there is one",
          options.max_restarts));
      return ExitCode::peer;
    }
    options.log.info(fmt::format("restart {} of {}, from {}", policy.used(), options.max_restarts,
                                 start.checkpoint ? start.checkpoint->string() : "the initial weights"));
  }
}

CrewOptions crew_options(const AgentOptions& options, const StartPoint& start) {
  return {.paths = options.paths,
          .start = start,
          .lock_id = options.lock_id,
          .count = options.world,
          .world = options.world,
          .served = options.rendezvous,
          .heartbeat = options.heartbeat,
          .settle_seconds = options.settle_seconds,
          .log = options.log,
          .interrupts = options.interrupts,
          .executable = options.executable,
          .arguments = options.arguments,
          .holds_lock = options.holds_lock,
          .stages = options.stages};
}

std::filesystem::path agent_log_path(const RunPaths& paths, int node) {
  return paths.logs() / fmt::format("agent-{:02}.log", node);
}

}  // namespace scaletrain
