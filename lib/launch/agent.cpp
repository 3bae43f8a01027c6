#include "launch/agent.h"

#include <fmt/format.h>

#include <map>

#include "base/error.h"
#include "launch/crew.h"

namespace scaletrain {
namespace {

constexpr int failures_at_one_step = 3;
// A worker's line each second, and eight in a heartbeat at least.
constexpr double longest_report = 1.0;
constexpr double reports_in_heartbeat = 8.0;

void log_attempt(Log& log, const Attempt& attempt, bool is_failure) {
  if (attempt.message) log.error(*attempt.message);
  if (is_failure) {
    log.error(attempt.description);
  } else {
    log.info(attempt.description);
  }
}

}  // namespace

ExitCode run_agent(const AgentOptions& options) {
  SCALETRAIN_CHECK(options.heartbeat > 0 && options.max_restarts >= 0 && options.world >= 1);
  StartPoint start = options.start;
  std::map<std::int64_t, int> failures;  // by step
  for (std::int64_t restarts = 0;; ++restarts) {
    if (options.interrupts.interrupted()) {
      options.log.info("interrupted while no worker was running: run again to go on");
      return ExitCode::interrupted;
    }
    require_lock(options);
    const Attempt attempt = run_crew(options, start);
    if (attempt.result) {
      log_attempt(options.log, attempt,
                  *attempt.result != ExitCode::finished && *attempt.result != ExitCode::interrupted);
      return *attempt.result;
    }
    if (!attempt.started) return ExitCode::interrupted;
    log_attempt(options.log, attempt, true);
    if (++failures[attempt.step] >= failures_at_one_step) {
      options.log.error(fmt::format(
          "no progress: {} failed {} times at step {}; not restarted any more. The last time: "
          "{}{}{}. More is in the logs in {}",
          options.world == 1 ? "the worker" : "the workers", failures_at_one_step, attempt.step, attempt.description,
          attempt.message ? ": " : "", attempt.message.value_or(""), options.paths.logs().string()));
      return ExitCode::no_progress;
    }
    if (options.interrupts.interrupted()) {
      options.log.warn(
          "the worker was lost after the interruption: steps since the last checkpoint will be repeated by the next "
          "run");
      return ExitCode::interrupted;
    }
    if (restarts >= options.max_restarts) {
      options.log.error(
          fmt::format("all {} restarts are used up (supervise.max_restarts); run again to go on from the newest "
                      "checkpoint, if there is one",
                      options.max_restarts));
      return ExitCode::peer;
    }
    const Report report = [&options](const std::string& text) { options.log.warn(text); };
    start = options.next_start ? options.next_start(start) : restart_point(options.paths, start, report);
    options.log.info(fmt::format("restart {} of {}, from {}", restarts + 1, options.max_restarts,
                                 start.checkpoint ? start.checkpoint->string() : "the initial weights"));
  }
}

std::vector<std::string> worker_arguments(const AgentOptions& options, const StartPoint& start,
                                          const WorkerSlot& slot) {
  std::vector<std::string> arguments = {"worker",        "--run-folder", options.paths.folder.string(),      "--lock",
                                        options.lock_id, "--generation", fmt::format("{}", start.generation)};
  const auto add = [&arguments](const char* name, std::string value) {
    arguments.emplace_back(name);
    arguments.push_back(std::move(value));
  };
  if (slot.rendezvous) {
    add("--rank", fmt::format("{}", slot.rank.value()));
    add("--world", fmt::format("{}", slot.world));
    add("--rendezvous", fmt::format("{}:{}", slot.rendezvous->host, slot.rendezvous->port));
    add("--sharers", fmt::format("{}", slot.sharers));
    add("--deadline", fmt::format("{}", collective_deadline(options.heartbeat)));
  }
  if (const double report = options.heartbeat / reports_in_heartbeat; report < longest_report)
    add("--report", fmt::format("{}", report));
  if (start.checkpoint) {
    add("--from", start.checkpoint->string());
    if (!start.asked.empty()) add("--asked", start.asked);
  }
  return arguments;
}

double collective_deadline(double heartbeat) {
  return 10 * heartbeat;
}

std::filesystem::path agent_log_path(const RunPaths& paths, int node) {
  return paths.logs() / fmt::format("agent-{:02}.log", node);
}

}  // namespace scaletrain
