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

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "commands.h"
#include "config/load.h"
#include "launch/agent.h"
#include "launch/launched_world.h"
#include "launch/run_lock.h"
#include "rank_process.h"
#include "run_checks.h"
#include "train/assembly.h"
#include "train/run_folder.h"

namespace scaletrain {

namespace {

// How long a rank that has lost its peers waits to hear why.
constexpr double cause_seconds = 3.0;
// How long a rank that cannot take part tries to tell the others so.
constexpr double tell_seconds = 20.0;
// Shorter secrets can be found by trying.
constexpr std::size_t shortest_secret = 16;

struct LaunchedRun {
  LoadedConfig loaded;
  RunPaths paths;
  LauncherPlace place;
  const InterruptWatcher& interrupts;
  std::string secret{};
  ResumeRequest resume{};
  CommandResult problem{};  // what may be wrong on this host alone
};

std::string secret_of_environment() {
  const char* const text = std::getenv("SCALETRAIN_SECRET");
  std::string secret = text == nullptr ? "" : text;
  if (!secret.empty() && secret.size() < shortest_secret)
    throw UserError(
        fmt::format("SCALETRAIN_SECRET has {} byte{}: at least {} are needed, such as from `openssl rand -hex 32`; or "
                    "unset it on all ranks, then rank 0 leaves one in the run folder",
                    secret.size(), secret.size() == 1 ? "" : "s", shortest_secret));
  return secret;
}

// A config that is wrong is so on every rank; what its paths lead to is this host's.
LoadedConfig load(const LaunchedCommand& command, CommandResult& problem) {
  std::optional<LoadedConfig> loaded;
  const auto load_whole = [&] {
    loaded.emplace(load_config(command.config, command.overrides));
    return ExitCode::finished;
  };
  problem = run_guarded(load_whole);
  if (loaded) return std::move(*loaded);
  try {
    return load_config(command.config, command.overrides, process_environment, {.missing_paths = MissingPaths::ignore});
  } catch (const UserError&) {
    if (problem.code == ExitCode::usage) throw UserError(problem.message);
    throw InputError(problem.message);
  }
}

LaunchedRun prepare(const LaunchedCommand& command) {
  CommandResult problem;
  LoadedConfig loaded = load(command, problem);
  RunPaths paths(std::filesystem::absolute(loaded.config.run.directory));
  LaunchedRun run{.loaded = std::move(loaded),
                  .paths = std::move(paths),
                  .place = command.place,
                  .interrupts = command.interrupts,
                  .secret = secret_of_environment(),
                  .problem = std::move(problem)};
  const LauncherPlace& place = run.place;
  if (place.rank == 0) {
    forget_refusal(run.paths);
    for (const std::string& notice : run.loaded.notices) write_message("notice: " + notice);
  }
  const RunPlan plan = checked_plan(run.loaded, place.world);
  const auto check_host = [&] {
    run.resume = parse_resume(command.resume, run.paths);
    const std::int64_t first = std::max<std::int64_t>(0, place.rank - place.local_rank);
    refuse_too_large(plan, first, std::min(place.local_world, place.world - first));
    check_initial_weights(run.loaded.config);
    if (run.loaded.config.launch.interface) address_of_interface(*run.loaded.config.launch.interface);
    return ExitCode::finished;
  };
  if (run.problem.message.empty()) run.problem = run_guarded(check_host);
  return run;
}

LaunchedWorld::Options world_options(const LaunchedRun& run, const bool* is_training) {
  const InterruptWatcher& interrupts = run.interrupts;
  return {.paths = run.paths,
          .place = run.place,
          .secret = run.secret,
          // A rank whose interface does not exist can still tell so.
          .interface = run.problem.message.empty() ? run.loaded.config.launch.interface : std::nullopt,
          .port = rendezvous_port(run.loaded.config),
          .interrupted = [&interrupts, is_training] { return !*is_training && interrupts.interrupted(); }};
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
  refuse_start(run.paths, run.place, {.rank = 0, .code = result.code, .message = result.message});
  if (result.code == ExitCode::usage) throw UserError(result.message);
  throw InputError(result.message);
}

// What all ranks must have been given alike: an interface may be called differently on every host.
std::string shared_config(const LaunchedRun& run) {
  Config config = run.loaded.config;
  config.launch.interface.reset();
  return resolved_yaml(config);
}

// "model.hidden: 64" for the given line of a resolved config.
std::string line_with_sections(const std::vector<std::string>& lines, std::size_t index) {
  if (index >= lines.size()) return "nothing";
  const auto indent_of = [&lines](std::size_t i) { return lines[i].find_first_not_of(' '); };
  std::size_t indent = indent_of(index);
  if (indent == std::string::npos) return "nothing";
  std::string text = lines[index].substr(indent);
  for (std::size_t i = index; i-- > 0 && indent > 0;) {
    if (indent_of(i) >= indent || !lines[i].ends_with(':')) continue;
    indent = indent_of(i);
    text = lines[i].substr(indent, lines[i].size() - indent - 1) + "." + text;
  }
  return text;
}

// The ranks of a run are one program with one config, or their collectives do not fit together.
void refuse_other_start(const LaunchedRun& run, const SharedStart& shared) {
  if (shared.version != program_version)
    throw UserError(fmt::format("rank {} is version {} of scaletrain and rank 0 is {}: start one version on all hosts",
                                run.place.rank, program_version, shared.version));
  const std::string own = shared_config(run);
  if (own == shared.config) return;
  const std::vector<std::string> ours = split_text(own, '\n');
  const std::vector<std::string> theirs = split_text(shared.config, '\n');
  std::size_t index = 0;
  while (index < std::min(ours.size(), theirs.size()) && ours[index] == theirs[index]) ++index;
  throw UserError(
      fmt::format("rank {} was started with another config than rank 0: {} here, {} there; start all ranks with the "
                  "same config and the same --set",
                  run.place.rank, line_with_sections(ours, index), line_with_sections(theirs, index)));
}

// Rank 0 decides where all begin; the others hear it. Nothing: interrupted, or another rank has failed.
std::optional<SharedStart> agree_on_start(const LaunchedRun& run, LaunchedWorld& world, const RunLock* lock) {
  if (lock == nullptr) {
    auto shared = world.await_start();
    if (shared) refuse_other_start(run, *shared);
    return shared;
  }
  SharedStart shared;
  shared.lock_id = lock->lock_id();
  shared.config = shared_config(run);
  shared.version = program_version;
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

// is_training becomes true at the first step.
ExitCode train(const LaunchedRun& run, LaunchedWorld& world, const RunLock* lock, bool& is_training) {
  StartGuard guard(run.interrupts, fmt::format("rank {}", run.place.rank));
  const std::optional<SharedStart> shared = agree_on_start(run, world, lock);
  if (!shared) throw PeerError("another rank failed at the start");
  if (shared->is_complete) return ExitCode::finished;
  const Config& config = run.loaded.config;
  const RankProcess process{
      .paths = run.paths,
      .start = shared->start,
      .lock_id = shared->lock_id,
      .interrupts = run.interrupts,
      .sharers = world.processor_sharers(),
      .entered =
          [&](std::int64_t, bool waiting) {
            if (!waiting && !is_training) {
              guard.end();
              is_training = true;
            }
            if (lock != nullptr && lock->lost())
              throw PeerError(
                  fmt::format("{}: the lock was taken over by another start or removed; nothing more is written here",
                              run.paths.lock().string()));
          },
      .failed =
          [&](const std::exception_ptr& error) {
            const CommandResult result = run_guarded([&]() -> ExitCode { std::rethrow_exception(error); });
            // Who has only lost a peer leaves the word to whoever knows why.
            if (result.code == ExitCode::peer) return;
            world.tell_failure({.rank = run.place.rank, .code = result.code, .message = result.message});
          },
      .rank = Rank(run.place.rank),
      .world = run.place.world,
      .local_rank = run.place.local_rank,
      .store = &world.store(),
      .address = config.launch.interface ? address_of_interface(*config.launch.interface)
                                         : address_towards(world.address().host),
      .deadline = collective_deadline(config.supervise.heartbeat)};
  return train_rank(process);
}

std::string cause_text(const SharedFailure& cause) {
  if (cause.is_silent) return fmt::format("ended because {}", cause.message);
  return fmt::format("ended because rank {} failed (exit code {}){}{}", cause.rank, static_cast<int>(cause.code),
                     cause.message.empty() ? "" : ": ", cause.message);
}

CommandResult take_part(const LaunchedRun& run, LaunchedWorld& world, const RunLock* lock, bool& is_training) {
  if (!run.problem.message.empty()) {
    world.tell_failure({.rank = run.place.rank, .code = run.problem.code, .message = run.problem.message});
    return run.problem;
  }
  CommandResult result = run_guarded([&] { return train(run, world, lock, is_training); });
  const bool was_interrupted = !is_training && run.interrupts.interrupted();
  if (result.code == ExitCode::peer) {
    // What this rank has lost may have gone for a reason that it told.
    const auto cause = world.cause(was_interrupted ? 0.0 : cause_seconds);
    if (was_interrupted && (world.was_interrupted() || !cause)) {
      result = {ExitCode::interrupted, "interrupted while starting up: there is nothing to save"};
    } else if (cause) {
      return {cause->code, cause_text(*cause)};
    }
  }
  if (!result.message.empty() || (!is_training && result.code == ExitCode::interrupted))
    world.tell_failure({.rank = run.place.rank, .code = result.code, .message = result.message});
  return result;
}

CommandResult run_rank(const LaunchedRun& run) {
  const std::string self = fmt::format("rank {}", run.place.rank);
  std::optional<RunLock> lock;
  std::optional<SharedFailure> refused;
  bool is_training = false;
  std::unique_ptr<LaunchedWorld> world;  // asks for is_training to its end
  const auto join = [&] {
    if (run.problem.message.empty() || run.place.rank == 0) open_run_folder(run.paths, run.resume);
    if (run.place.rank == 0) lock = take_lock(run);
    LaunchedWorld::Options options = world_options(run, &is_training);
    if (!run.problem.message.empty()) options.seconds = tell_seconds;
    world = LaunchedWorld::join(options, refused);
    return world ? ExitCode::finished : ExitCode::interrupted;
  };
  CommandResult result = run_guarded(join);
  if (refused) result.code = refused->code;
  if (world) {
    result = take_part(run, *world, lock ? &*lock : nullptr, is_training);
  } else if (!run.problem.message.empty()) {
    result = run.problem;
  }
  // Before the farewell, which may take a while.
  if (!result.message.empty()) write_message(fmt::format("scaletrain: {}: {}", self, result.message));
  return result;
}

// A folder that was made only to tell the others of a start that could not be: nothing but empty folders and the lock's
// guard are in it.
void remove_unused_folder(const RunPaths& paths) noexcept {
  std::error_code ignored;
  const std::filesystem::path guard = paths.folder / ".lock.json.guard";
  for (const auto& folder : {paths.checkpoints(), paths.logs()}) std::filesystem::remove(folder, ignored);
  for (const auto& entry : std::filesystem::directory_iterator(paths.folder, ignored))
    if (entry.path() != guard) return;
  std::filesystem::remove(guard, ignored);
  std::filesystem::remove(paths.folder, ignored);
}

}  // namespace

ExitCode run_as_launched_rank(const LaunchedCommand& command) {
  const LaunchedRun run = prepare(command);
  std::error_code ignored;
  const bool is_new = !std::filesystem::exists(run.paths.folder, ignored);
  const ExitCode code = run_rank(run).code;
  if (is_new && run.place.rank == 0 && !run.problem.message.empty()) remove_unused_folder(run.paths);
  return code;
}

}  // namespace scaletrain
