#include "launch/agent.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "launch/worker_channel.h"
#include "launch/worker_process.h"

namespace scaletrain {
namespace {

constexpr int failures_at_one_step = 3;

// How long the worker has been silent. Counts only time in which the agent itself was running: a machine that slept, or
// a job that was stopped as a whole and continued, is no hang.
class Silence {
 public:
  explicit Silence(double longest_tick) : longest_tick_(longest_tick) {}

  // To be called once per tick.
  void observe(const WorkerStatus& status) {
    const double elapsed = seconds_since(last_look_);
    last_look_ = monotonic_now();
    const bool is_alive = status.waiting
                              ? status.lines != seen_.lines
                              : std::pair(status.progress, status.step) != std::pair(seen_.progress, seen_.step);
    const bool is_new_state = status.waiting != seen_.waiting;
    seen_ = status;
    seconds_ = is_alive || is_new_state ? 0.0 : seconds_ + std::min(elapsed, 2 * longest_tick_);
  }
  double seconds() const { return seconds_; }

 private:
  double longest_tick_;
  double seconds_ = 0.0;
  WorkerStatus seen_;
  MonotonicTime last_look_ = monotonic_now();
};

// One worker from its start to its end.
struct Attempt {
  ProcessEnd end;
  bool hung = false;
  bool started = true;    // false: interrupted before it came to its first step
  std::int64_t step = 0;  // where it was last seen
  std::optional<WorkerError> error;
  std::string description;  // "worker 123 was killed by signal 9 (Killed) at step 17"
};

std::string describe_end(const Attempt& attempt, pid_t pid, double silent, bool was_waiting) {
  if (attempt.hung) {
    const std::string_view what =
        was_waiting ? "gave no sign of life (it was starting up or waiting for storage)" : "made no progress";
    const std::string_view remedy = was_waiting
                                        ? "raise supervise.heartbeat if this machine or its storage can be that slow"
                                        : "raise supervise.heartbeat, or lower train.micro_batch or model.context, if "
                                          "one layer of one micro-batch takes longer";
    return fmt::format("worker {} {} for {} at step {} (supervise.heartbeat) and was killed; {}", pid, what,
                       duration_text(silent), attempt.step, remedy);
  }
  if (!attempt.end.exit_code) {
    return fmt::format("worker {} was killed by signal {} ({}) at step {}", pid, attempt.end.signal,
                       ::strsignal(attempt.end.signal), attempt.step);
  }
  return fmt::format("worker {} ended with exit code {} at step {}", pid, *attempt.end.exit_code, attempt.step);
}

void require_lock(const AgentOptions& options) {
  if (!options.holds_lock || options.holds_lock()) return;
  throw PeerError(
      fmt::format("{}: the lock was taken over by another agent or removed; the worker is ended, nothing more is "
                  "written here",
                  options.paths.lock().string()));
}

// Starts a worker and returns when it has ended. Throws PeerError when it cannot be started or the lock is lost.
Attempt run_worker(const AgentOptions& options, const StartPoint& start) {
  ChannelPair pair = make_channel();
  WorkerProcess worker(options.executable,
                       options.arguments ? options.arguments(start) : worker_arguments(options, start), pair.worker);
  pair.worker = FileDescriptor();
  WorkerChannel channel(std::move(pair.agent));
  options.log.info(
      fmt::format("worker {} started at step {}, generation {}", worker.pid(), start.step, start.generation));

  // Fine enough that a hang is seen within an eighth of the heartbeat; once a second is often enough for the lock.
  // Without a process descriptor only the tick sees an end.
  const double tick = std::clamp(options.heartbeat / 8, 0.01, worker.descriptor() >= 0 ? 1.0 : 0.05);
  Silence silence(tick);
  Attempt attempt;
  bool is_open = true;
  bool is_forwarded = false;
  for (;;) {
    std::array<pollfd, 3> sources = {pollfd{worker.descriptor(), POLLIN, 0},
                                     pollfd{is_open ? channel.descriptor() : -1, POLLIN, 0},
                                     pollfd{is_forwarded ? -1 : options.interrupts.descriptor(), POLLIN, 0}};
    ::poll(sources.data(), sources.size(), static_cast<int>(tick * 1000));
    const auto end = worker.ended();
    if (is_open) is_open = channel.drain();
    if (end) {
      attempt.end = *end;
      break;
    }
    if (options.interrupts.interrupted() && !is_forwarded) {
      // Once: a signal pending in a worker that is still starting up is not lost, and a second one would say nothing
      // new.
      is_forwarded = true;
      if (channel.status().step < 0) {
        // Opening data or a large model can take longer than the time a scheduler grants.
        options.log.info("interrupted while the worker was starting up: there is nothing to save");
        attempt.started = false;
        worker.kill();
        channel.drain();
        attempt.end = *worker.ended();
        break;
      }
      options.log.info("interrupted: the worker finishes its step, saves and leaves");
      worker.signal(SIGTERM);
    }
    silence.observe(channel.status());
    if (silence.seconds() >= options.heartbeat) {
      attempt.hung = true;
      worker.kill();
      channel.drain();
      attempt.end = *worker.ended();
      break;
    }
    require_lock(options);
  }
  const WorkerStatus& status = channel.status();
  attempt.step = status.step >= 0 ? status.step : start.step;
  attempt.error = status.error;
  attempt.description = describe_end(attempt, worker.pid(), silence.seconds(), status.waiting);
  return attempt;
}

// The exit code that is the run's own result; nothing if the worker failed in a way that a restart may mend.
std::optional<ExitCode> result_of(const Attempt& attempt) {
  if (attempt.hung || !attempt.end.exit_code) return std::nullopt;
  const auto code = static_cast<ExitCode>(*attempt.end.exit_code);
  switch (code) {
    case ExitCode::finished:
    case ExitCode::bug:
    case ExitCode::usage:
    case ExitCode::input:
    case ExitCode::diverged:
    case ExitCode::no_progress:
    case ExitCode::interrupted:
      return code;
    case ExitCode::peer:
      break;
  }
  return std::nullopt;
}

void log_attempt(Log& log, const Attempt& attempt, bool is_failure) {
  if (attempt.error) log.error(attempt.error->message);
  if (is_failure) {
    log.error(attempt.description);
  } else {
    log.info(attempt.description);
  }
}

}  // namespace

ExitCode run_agent(const AgentOptions& options) {
  SCALETRAIN_CHECK(options.heartbeat > 0 && options.max_restarts >= 0);
  StartPoint start = options.start;
  std::map<std::int64_t, int> failures;  // by step
  for (std::int64_t restarts = 0;; ++restarts) {
    if (options.interrupts.interrupted()) {
      options.log.info("interrupted while no worker was running: the last checkpoint stands, run again to go on");
      return ExitCode::interrupted;
    }
    require_lock(options);
    const Attempt attempt = run_worker(options, start);
    if (const auto result = result_of(attempt)) {
      log_attempt(options.log, attempt, *result != ExitCode::finished && *result != ExitCode::interrupted);
      return *result;
    }
    if (!attempt.started) return ExitCode::interrupted;
    log_attempt(options.log, attempt, true);
    if (++failures[attempt.step] >= failures_at_one_step) {
      options.log.error(
          fmt::format("no progress: the worker failed {} times at step {}; not restarted any more. The last time: "
                      "{}{}{}. More is in the logs in {}",
                      failures_at_one_step, attempt.step, attempt.description, attempt.error ? ": " : "",
                      attempt.error ? attempt.error->message : "", options.paths.logs().string()));
      return ExitCode::no_progress;
    }
    if (options.interrupts.interrupted()) {
      options.log.warn(
          "the worker was lost after the interruption: steps since the last checkpoint will be repeated by the next "
          "run");
      return ExitCode::interrupted;
    }
    if (restarts >= options.max_restarts) {
      options.log.error(fmt::format("all {} restarts are used up (supervise.max_restarts); the last checkpoint stands",
                                    options.max_restarts));
      return ExitCode::peer;
    }
    const Report report = [&options](const std::string& text) { options.log.warn(text); };
    start = options.next_start ? options.next_start(start) : restart_point(options.paths, start, report);
    options.log.info(fmt::format("restart {} of {}, from {}", restarts + 1, options.max_restarts,
                                 start.checkpoint ? start.checkpoint->string() : "the initial weights"));
  }
}

std::vector<std::string> worker_arguments(const AgentOptions& options, const StartPoint& start) {
  std::vector<std::string> arguments = {"worker",        "--run-folder", options.paths.folder.string(),      "--lock",
                                        options.lock_id, "--generation", fmt::format("{}", start.generation)};
  if (start.checkpoint) {
    arguments.emplace_back("--from");
    arguments.push_back(start.checkpoint->string());
    if (!start.asked.empty()) {
      arguments.emplace_back("--asked");
      arguments.push_back(start.asked);
    }
  }
  return arguments;
}

std::filesystem::path agent_log_path(const RunPaths& paths, int node) {
  return paths.logs() / fmt::format("agent-{:02}.log", node);
}

}  // namespace scaletrain
