#include "launched.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "commands.h"
#include "config/load.h"
#include "launch/agent.h"
#include "launch/launched_world.h"
#include "launch/run_lock.h"
#include "launched_watch.h"
#include "rank_process.h"
#include "run_checks.h"
#include "start_agreement.h"
#include "train/assembly.h"
#include "train/end_of_run.h"
#include "train/run_folder.h"

namespace scaletrain {

namespace {

// How long a rank that has lost its peers waits to hear why.
constexpr double cause_seconds = 3.0;
// How long a rank that cannot take part tries to tell the others so.
constexpr double tell_seconds = 20.0;

struct LaunchedRun {
  LoadedConfig loaded;  // of a config that is wrong only run.directory
  RunPaths paths;
  LauncherPlace place;
  const InterruptWatcher& interrupts;
  std::string secret{};
  ResumeRequest resume{};
  std::optional<RunPlan> plan{};
  CommandResult problem{};  // why this rank cannot take part: found by this host alone, or by all of them

  bool is_refused() const { return !problem.message.empty(); }
};

// What a rank came to, and which rank says why in full.
struct RankEnd {
  CommandResult result;
  std::optional<std::int64_t> shown_by{};  // another than this one
};

// What can be told before the others are met. Of how many ranks share this host only some launchers give account.
void check_alone(const LaunchedCommand& command, LaunchedRun& run) {
  const LauncherPlace& place = run.place;
  if (run.loaded.config.supervise.elastic_min_data)
    throw UserError(run.loaded.located(
        fmt::format("supervise.elastic: ranks that {} has started stay as many as they are; start one agent per node "
                    "(srun with one task per node), or set null",
                    place.launcher)));
  run.plan = checked_plan(run.loaded, place.world);
  if (place.rank == 0)
    for (const std::string& notice : run.plan->notices) write_message("notice: " + notice);
  run.secret = secret_of_environment();
  run.resume = requested_resume(command.resume, run.paths);
  const bool are_neighbours = place.local_world == place.world || place.launcher == "torchrun";
  const std::int64_t first = are_neighbours ? std::max<std::int64_t>(0, place.rank - place.local_rank) : place.rank;
  refuse_too_large(run.loaded, *run.plan, first, are_neighbours ? std::min(place.local_world, place.world - first) : 1);
  check_initial_weights(run.loaded.config);
  if (run.loaded.config.launch.interface) address_of_interface(*run.loaded.config.launch.interface);
}

// Nothing: this rank cannot reach the others; `problem` says why.
std::optional<LaunchedRun> prepare(const LaunchedCommand& command, CommandResult& problem) {
  std::optional<LoadedConfig> loaded =
      load_for_start(command.config, command.overrides,
                     WorldSize{.ranks = command.place.world, .told = command.place.launcher + " has started"}, problem);
  if (!loaded) return std::nullopt;
  RunPaths paths(std::filesystem::absolute(loaded->config.run.directory));
  LaunchedRun run{.loaded = std::move(*loaded),
                  .paths = std::move(paths),
                  .place = command.place,
                  .interrupts = command.interrupts,
                  .problem = problem};
  if (run.place.rank == 0) {
    forget_refusal(run.paths);
    for (const std::string& notice : run.loaded.notices) write_message("notice: " + notice);
  }
  if (!run.is_refused())
    run.problem = run_guarded([&] {
      check_alone(command, run);
      return ExitCode::finished;
    });
  return run;
}

SharedFailure failure_of(const LaunchedRun& run, const CommandResult& result) {
  return {.rank = run.place.rank, .code = result.code, .message = result.message};
}

LaunchedWorld::Options world_options(const LaunchedRun& run, const bool* is_training) {
  const InterruptWatcher& interrupts = run.interrupts;
  LaunchedWorld::Options options{
      .paths = run.paths,
      .place = run.place,
      .secret = run.secret,
      .port = rendezvous_port(run.loaded.config),
      .interrupted = [&interrupts, is_training] { return !*is_training && interrupts.interrupted(); }};
  // Where rank 0 is missing, a few say so.
  if (run.place.rank <= 1 || run.place.local_rank <= 1)
    options.waiting =
        waiting_teller(fmt::format("rank {}", run.place.rank), rank_log_path(run.paths.folder, run.place.rank));
  if (run.is_refused()) {
    // Without the interface, which may be what does not exist.
    options.refusal = failure_of(run, run.problem);
    options.seconds = tell_seconds;
  } else {
    options.interface = run.loaded.config.launch.interface;
  }
  return options;
}

// Rank 0's lock; the ranks that wait are told when it cannot be had.
std::optional<RunLock> take_lock(const LaunchedRun& run) {
  std::optional<RunLock> lock;
  const auto acquire = [&] {
    lock.emplace(RunLock::acquire(run.paths.lock(), run_lock_options_from_environment()));
    return ExitCode::finished;
  };
  const CommandResult result = run_guarded(acquire);
  if (lock) return lock;
  refuse_start(run.paths, run.place, failure_of(run, run.is_refused() ? run.problem : result));
  if (result.code == ExitCode::usage) throw UserError(result.message);
  throw InputError(result.message);
}

// Rank 0 decides where all begin; the others hear it. Nothing: interrupted, or another rank has failed.
std::optional<SharedStart> agree_on_start(const LaunchedRun& run, LaunchedWorld& world, const RunLock* lock) {
  if (lock == nullptr) {
    auto shared = world.await_start();
    if (shared) refuse_other_start("rank", run.place.rank, run.loaded.config, shared->config, shared->version);
    return shared;
  }
  SharedStart shared;
  shared.lock_id = lock->lock_id();
  shared.config = shared_config(run.loaded.config);
  shared.version = program_identity();
  shared.start = prepare_run_folder(run.paths, run.loaded, run.resume, write_message);
  if (const auto complete = already_complete(shared.start, run.loaded.config)) {
    write_message(*complete);
    shared.is_complete = true;
  } else if (shared.start.checkpoint) {
    write_message(fmt::format("resuming from {} (step {})", shared.start.checkpoint->string(), shared.start.step));
  }
  world.announce(shared);
  return shared;
}

// A start-up has nothing to save, and parts of it (tokenising a corpus, reading a large checkpoint) listen to nobody:
// when it goes on for more than a moment after an interruption, the process ends here. What it leaves in the run folder
// is taken over by the next start, as from a process that was killed.
class StartGuard {
 public:
  StartGuard(const InterruptWatcher& interrupts, std::string self)
      : interrupts_(interrupts), self_(std::move(self)), thread_([this] { watch(); }) {}
  ~StartGuard() { end(); }
  StartGuard(const StartGuard&) = delete;
  StartGuard& operator=(const StartGuard&) = delete;

  // The start-up is over.
  void end() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void watch() {
    constexpr auto look = std::chrono::milliseconds(100);
    constexpr double grace_seconds = 3.0;
    std::optional<MonotonicTime> since;
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, look, [this] { return is_over_; })) {
      if (!interrupts_.interrupted()) continue;
      if (!since) since = monotonic_now();
      if (seconds_since(*since) < grace_seconds) continue;
      write_message(fmt::format("scaletrain: {}: interrupted while starting up: there is nothing to save", self_));
      std::_Exit(static_cast<int>(ExitCode::interrupted));
    }
  }

  const InterruptWatcher& interrupts_;
  std::string self_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread thread_;
};

// Where this rank's tensors come in: no other host need reach it where there is none.
std::string data_address(const LaunchedRun& run, const LaunchedWorld& world, const std::vector<std::int64_t>& host) {
  const LaunchConfig& launch = run.loaded.config.launch;
  if (launch.interface) return address_of_interface(*launch.interface);
  if (static_cast<std::int64_t>(host.size()) == run.place.world) return "127.0.0.1";
  return address_towards(world.address().host);
}

// A reason of this rank's own, whatever else follows from it.
bool has_lost(const RunLock* lock) {
  return lock != nullptr && lock->lost();
}

// is_training becomes true at the first step. end_of_run: of the rank with the lock, once it is known that there is
// something to do.
ExitCode train(const LaunchedRun& run, LaunchedWorld& world, const RunLock* lock, bool& is_training,
               std::optional<EndOfRun>& end_of_run) {
  StartGuard guard(run.interrupts, fmt::format("rank {}", run.place.rank));
  const std::optional<SharedStart> shared = agree_on_start(run, world, lock);
  if (!shared) throw PeerError("another rank failed at the start");
  if (shared->is_complete) return ExitCode::finished;
  if (lock != nullptr) end_of_run.emplace(run.paths.metrics(), [lock] { return !lock->lost(); });
  const Config& config = run.loaded.config;
  const std::vector<std::int64_t> host = world.host_ranks();
  refuse_too_large(run.loaded, *run.plan, host);
  if (host.front() == run.place.rank) notice_crowd(static_cast<std::int64_t>(host.size()));
  if (const auto& ranks = config.launch.ranks_per_node; ranks && static_cast<std::int64_t>(host.size()) != *ranks)
    throw UserError(fmt::format("launch.ranks_per_node: {}, and {} has started {} on this host", *ranks,
                                run.place.launcher, host.size()));
  const auto self = std::find(host.begin(), host.end(), run.place.rank);
  SCALETRAIN_CHECK(self != host.end());
  LaunchedWatch watch({.world = world,
                       .rank = run.place.rank,
                       .ranks = run.place.world,
                       .stages = config.parallel.pipeline,
                       .heartbeat = config.supervise.heartbeat,
                       .log = rank_log_path(run.paths.folder, run.place.rank)});
  const RankProcess process{
      .paths = run.paths,
      .start = shared->start,
      .lock_id = shared->lock_id,
      .interrupts = run.interrupts,
      .sharers = world.processor_sharers(),
      .progress = &watch.observed().progress,
      .entered =
          [&](std::int64_t step, bool waiting) {
            watch.entered(step, waiting);
            if (!waiting && !is_training) {
              guard.end();
              is_training = true;
            }
            if (has_lost(lock))
              throw PeerError(
                  fmt::format("{}: the lock was taken over by another start or removed; nothing more is written here",
                              run.paths.lock().string()));
          },
      .failed =
          [&](const std::exception_ptr& error) {
            const CommandResult result = run_guarded([&]() -> ExitCode { std::rethrow_exception(error); });
            // Who has only lost a peer leaves the word to whoever knows why.
            if (result.code == ExitCode::peer && !has_lost(lock)) return;
            world.tell_failure(failure_of(run, result));
          },
      .rank = Rank(run.place.rank),
      .world = run.place.world,
      .local_rank = self - host.begin(),
      .store = &world.store(),
      .background_store = &world.background_store(),
      .address = data_address(run, world, host),
      .collectives = &watch.observed().collectives,
      .deadline = collective_deadline(config.supervise.heartbeat)};
  return train_rank(process);
}

// Rank 0 and the rank that failed give the reason in full.
std::string cause_text(const LaunchedRun& run, const SharedFailure& cause) {
  if (cause.is_silent) return fmt::format("ended because {}", cause.message);
  return fmt::format("ended because rank {} failed (exit code {}){}{}", cause.rank, static_cast<int>(cause.code),
                     cause.message.empty() ? "" : ": ", run.place.rank == 0 ? cause.message : brief(cause.message));
}

// Tells the others why this rank ends. A reason that another has given before is said in full by that one alone.
RankEnd tell(const LaunchedRun& run, LaunchedWorld& world, const CommandResult& result) {
  world.tell_failure(failure_of(run, result));
  if (run.place.rank == 0) return {result};
  constexpr double patience = 1.0;  // between another's claim to be the first to tell and its word
  const auto cause = world.told_failure(patience);
  if (!cause || cause->rank == run.place.rank || cause->message != result.message) return {result};
  return {result, cause->rank};
}

RankEnd take_part(const LaunchedRun& run, LaunchedWorld& world, const RunLock* lock, bool& is_training,
                  std::optional<EndOfRun>& end_of_run) {
  if (run.is_refused()) return tell(run, world, run.problem);
  CommandResult result = run_guarded([&] { return train(run, world, lock, is_training, end_of_run); });
  const bool was_interrupted = !is_training && run.interrupts.interrupted();
  if (result.code == ExitCode::peer && !has_lost(lock)) {
    // What this rank has lost may have gone for a reason that it told.
    const auto cause = world.cause(was_interrupted ? 0.0 : cause_seconds);
    if (was_interrupted && (world.was_interrupted() || !cause)) {
      result = {ExitCode::interrupted, "interrupted while starting up: there is nothing to save"};
    } else if (cause) {
      return {{cause->code, cause_text(run, *cause)}};
    }
  }
  if (!result.message.empty() || (!is_training && result.code == ExitCode::interrupted))
    return tell(run, world, result);
  return {result};
}

// Before the farewell, which may take a while.
void show(const LaunchedRun& run, const RankEnd& end) {
  if (end.result.message.empty()) return;
  const std::string text = end.shown_by ? fmt::format("exit code {} for the reason that rank {} gives",
                                                      static_cast<int>(end.result.code), *end.shown_by)
                                        : end.result.message;
  write_message(fmt::format("scaletrain: rank {}: {}", run.place.rank, text));
}

// For a rank that has not met the others: what a host's first rank found is this one's reason too, most likely.
void show_alone(const LauncherPlace& place, const CommandResult& problem) {
  const bool is_first = place.rank == 0 || place.local_rank == 0;
  write_message(
      fmt::format("scaletrain: rank {}: {}", place.rank, is_first ? problem.message : brief(problem.message)));
}

ExitCode run_rank(const LaunchedRun& run) {
  std::optional<RunLock> lock;
  std::optional<SharedFailure> refused;
  bool is_training = false;
  std::unique_ptr<LaunchedWorld> world;  // asks for is_training to its end
  const auto join = [&] {
    if (!run.is_refused() || run.place.rank == 0) open_run_folder(run.paths, run.resume);
    if (run.place.rank == 0) lock = take_lock(run);
    world = LaunchedWorld::join(world_options(run, &is_training), refused);
    return world ? ExitCode::finished : ExitCode::interrupted;
  };
  // Before the others can hear of it: many launchers end all ranks once one has left.
  const bool is_shown = run.is_refused() && run.place.rank == 0;
  if (is_shown) show(run, {run.problem});
  CommandResult result = run_guarded(join);
  if (refused) result = {refused->code, cause_text(run, *refused)};
  if (world) {
    std::optional<EndOfRun> end_of_run;
    const RankEnd end = take_part(run, *world, lock ? &*lock : nullptr, is_training, end_of_run);
    if (end_of_run) end_of_run->tell(end.result.code, end.result.message, write_message);
    if (!is_shown) show(run, end);
    if (run.place.rank == 0) notice_never(run.resume, end.result.code);
    return end.result.code;
  }
  if (!run.is_refused()) {
    if (!result.message.empty()) show_alone(run.place, result);
    return result.code;
  }
  if (is_shown) return run.problem.code;
  // Who refused the start for the same reason has said it.
  if (refused && refused->message == run.problem.message) {
    show(run, {run.problem, refused->rank});
  } else {
    show_alone(run.place, run.problem);
  }
  return run.problem.code;
}

}  // namespace

ExitCode run_as_launched_rank(const LaunchedCommand& command) {
  CommandResult problem;
  const std::optional<LaunchedRun> run = prepare(command, problem);
  if (!run) {
    show_alone(command.place, problem);
    return problem.code;
  }
  const std::filesystem::path first_new = first_new_folder(run->paths.folder);
  const ExitCode code = run_rank(*run);
  if (run->place.rank == 0 && run->is_refused() && !first_new.empty()) remove_unused_folder(run->paths, first_new);
  return code;
}

}  // namespace scaletrain
