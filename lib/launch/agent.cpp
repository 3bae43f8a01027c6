#include "launch/agent.h"

#include <fmt/format.h>

#include "base/error.h"
#include "launch/restarts.h"

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

// Why the run has ended: an error's own words.
std::string reason_of(const Attempt& attempt) {
  if (attempt.result == ExitCode::interrupted) return "interrupted";
  return attempt.message ? message_of(attempt) : attempt.description;
}

}  // namespace

ExitCode run_agent(const AgentOptions& options) {
  SCALETRAIN_CHECK(options.heartbeat > 0 && options.max_restarts >= 0 && options.world >= 1);
  StartPoint start = options.start;
  const auto newest_start = [&options](const StartPoint& before) {
    return restart_point(options.paths, before, [&options](const std::string& text) { options.log.warn(text); });
  };
  Restarts restarts({.max_restarts = options.max_restarts,
                     .first_step = start.step,
                     .log = options.log,
                     .next_start = options.next_start ? options.next_start
                                                      : std::function<StartPoint(const StartPoint&)>(newest_start),
                     .interrupted = [&options] { return options.interrupts.interrupted(); }});
  const auto end = [&options](ExitCode code, const std::string& reason) {
    if (options.ended) options.ended(code, reason);
    return code;
  };
  std::optional<MonotonicTime> failed_at;
  for (;;) {
    if (options.interrupts.interrupted()) {
      options.log.info("interrupted while no worker was running: run again to go on");
      return end(ExitCode::interrupted, "interrupted while no worker was running");
    }
    CrewOptions crew = crew_options(options, start);
    crew.failed_before = failed_at;
    require_lock(crew);
    const Attempt attempt = run_crew(crew);
    if (attempt.result) {
      log_attempt(options.log, attempt,
                  *attempt.result != ExitCode::finished && *attempt.result != ExitCode::interrupted);
      return end(*attempt.result, reason_of(attempt));
    }
    if (!attempt.started) return end(ExitCode::interrupted, "interrupted while starting up");
    failed_at = attempt.failed_at;
    log_attempt(options.log, attempt, true);
    restarts.failed(
        {.what = fmt::format("{}{}{}", attempt.description, attempt.message ? ": " : "", message_of(attempt)),
         .step = attempt.step},
        start);
    const Restarts::Outcome outcome = restarts.await_outcome();
    if (outcome.end) {
      if (*outcome.end == ExitCode::interrupted) {
        options.log.warn(outcome.reason);
      } else {
        options.log.error(fmt::format("{}. More is in the logs in {}", outcome.reason, options.paths.logs().string()));
      }
      return end(*outcome.end, outcome.reason);
    }
    start = outcome.start;
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
