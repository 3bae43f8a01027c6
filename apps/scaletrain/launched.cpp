#include "launched.h"

#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "commands.h"
#include "launch/agent.h"
#include "launch/launched_world.h"
#include "launch/run_lock.h"
#include "rank_process.h"

namespace scaletrain {

namespace {

// How long a rank that has lost its peers waits to hear why.
constexpr double cause_seconds = 3.0;

LaunchedWorld::Options world_options(const LaunchedRun& run) {
  const char* const secret = std::getenv("SCALETRAIN_SECRET");
  return {.paths = run.paths, .place = run.place, .secret = secret == nullptr ? "" : secret, .interrupted = [&run] {
            return run.interrupts.interrupted();
          }};
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

// Rank 0 decides where all begin; the others hear it. Nothing: interrupted, or another rank has failed.
std::optional<SharedStart> agree_on_start(const LaunchedRun& run, LaunchedWorld& world, const RunLock* lock) {
  if (lock == nullptr) return world.await_start();
  SharedStart shared;
  shared.lock_id = lock->lock_id();
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

// is_training becomes true when a step may follow.
ExitCode train(const LaunchedRun& run, LaunchedWorld& world, const RunLock* lock, bool& is_training) {
  const std::optional<SharedStart> shared = agree_on_start(run, world, lock);
  if (!shared) {
    if (run.interrupts.interrupted()) return ExitCode::interrupted;
    throw PeerError("another rank failed at the start");
  }
  if (shared->is_complete) return ExitCode::finished;
  RankProcess process{.paths = run.paths,
                      .start = shared->start,
                      .lock_id = shared->lock_id,
                      .interrupts = run.interrupts,
                      .sharers = world.processor_sharers(),
                      .rank = Rank(run.place.rank),
                      .world = run.place.world,
                      .local_rank = run.place.local_rank,
                      .store = &world.store(),
                      .rendezvous_host = world.address().host,
                      .deadline = collective_deadline(run.loaded.config.supervise.heartbeat)};
  if (lock != nullptr) {
    process.entered = [&run, lock](std::int64_t, bool) {
      if (lock->lost())
        throw PeerError(
            fmt::format("{}: the lock was taken over by another start or removed; nothing more is written "
                        "here",
                        run.paths.lock().string()));
    };
  }
  is_training = true;
  return train_rank(process);
}

}  // namespace

ExitCode run_as_launched_rank(const LaunchedRun& run) {
  const std::string self = fmt::format("rank {}", run.place.rank);
  std::optional<RunLock> lock;
  if (run.place.rank == 0) lock = take_lock(run);
  std::optional<SharedFailure> refused;
  std::unique_ptr<LaunchedWorld> world;
  const auto join = [&] {
    world = LaunchedWorld::join(world_options(run), refused);
    return world ? ExitCode::finished : ExitCode::interrupted;
  };
  CommandResult result = run_guarded(join);
  if (!world) {
    if (!result.message.empty()) write_message(fmt::format("scaletrain: {}: {}", self, result.message));
    return refused ? refused->code : result.code;
  }
  bool is_training = false;
  result = run_guarded([&] { return train(run, *world, lock ? &*lock : nullptr, is_training); });
  if (result.code == ExitCode::peer) {
    // What this rank has lost may have gone for a reason that it told.
    if (const auto cause = world->told_failure(cause_seconds)) {
      result.code = cause->code;
      result.message = fmt::format("ended because rank {} failed (exit code {}){}", cause->rank,
                                   static_cast<int>(cause->code), cause->message.empty() ? "" : ": " + cause->message);
    }
  } else if (!result.message.empty() || (!is_training && result.code == ExitCode::interrupted)) {
    world->tell_failure({.rank = run.place.rank, .code = result.code, .message = result.message});
  }
  if (!result.message.empty()) write_message(fmt::format("scaletrain: {}: {}", self, result.message));
  return result.code;
}

}  // namespace scaletrain
