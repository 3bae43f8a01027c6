#include "launched_watch.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <thread>
#include <utility>

#include "base/exit_code.h"
#include "commands.h"
#include "start_agreement.h"

namespace scaletrain {

namespace {

// Some launchers end all processes as soon as one has left: each gives the others the time to write their reports.
constexpr auto linger = std::chrono::seconds(2);

}  // namespace

LaunchedWatch::LaunchedWatch(const Options& options)
    : report_({.file = options.log,
               .place = [this, rank = options.rank] { return place_of(rank, observed_); },
               .has_agent = false}),
      watch_(watch_options(options)) {}

RankWatch::Options LaunchedWatch::watch_options(const Options& options) {
  const LaunchedWorld& world = options.world;
  const double heartbeat = options.heartbeat;
  const std::int64_t rank = options.rank;
  return {.rank = rank,
          .world = options.ranks,
          .stages = options.stages,
          .heartbeat = heartbeat,
          .judges = rank == 0,
          .connect = [&world, heartbeat](double seconds) { return world.connect(seconds, heartbeat); },
          .status = [this] { return status(); },
          .warn = waiting_teller(fmt::format("rank {}", rank), options.log),
          .hangs = [this, &world, rank](const std::string& reason) { leave(world, rank, reason); }};
}

void LaunchedWatch::entered(std::int64_t step, bool waiting) {
  observed_.step.store(step, std::memory_order_relaxed);
  const bool has_pace = meter_.entered(step, waiting);
  bool is_new = false;
  {
    const std::lock_guard lock(mutex_);
    is_new = waiting != waiting_;
    step_ = step;
    waiting_ = waiting;
    if (has_pace) pace_ = meter_.pace();
  }
  if (is_new) watch_.changed();
}

WorkerStatus LaunchedWatch::status() {
  WorkerStatus status;
  status.progress = observed_.progress.load(std::memory_order_relaxed);
  if (auto wait = observed_.collectives.wait())
    status.collective = InCollective{.text = std::move(wait->text), .seconds = wait->seconds};
  status.storage = storage_.look();
  const std::lock_guard lock(mutex_);
  status.step = step_;
  status.waiting = waiting_;
  if (pace_.steps > 0) status.pace = pace_;
  return status;
}

void LaunchedWatch::leave(const LaunchedWorld& world, std::int64_t rank, const std::string& reason) {
  write_message(fmt::format("scaletrain: rank {}: {}", rank, reason));
  // Storage that hangs must not hold this up.
  std::thread([&world] { world.withdraw(); }).detach();
  report_.write_last(fmt::format("the ranks hang ({})", reason));
  std::this_thread::sleep_for(linger);
  std::_Exit(static_cast<int>(ExitCode::peer));
}

}  // namespace scaletrain
