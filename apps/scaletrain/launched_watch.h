// What a launched rank tells the others of itself while it trains, and how it ends when the ranks hang: its log gets
// the collective that it is in and the stacks of its threads, and the process leaves with 4, for the launcher to end
// the job or start it again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>

#include "launch/hang_report.h"
#include "launch/launched_world.h"
#include "launch/rank_watch.h"
#include "launch/storage_probe.h"
#include "observed.h"

namespace scaletrain {

class LaunchedWatch {
 public:
  struct Options {
    const LaunchedWorld& world;
    std::int64_t rank = 0;
    std::int64_t ranks = 1;
    std::int64_t stages = 1;
    double heartbeat = 60.0;
    std::filesystem::path log;  // the rank's
  };
  // Watches from now on; PeerError if the rendezvous cannot be reached. The world must outlive it.
  explicit LaunchedWatch(const Options& options);
  LaunchedWatch(const LaunchedWatch&) = delete;
  LaunchedWatch& operator=(const LaunchedWatch&) = delete;

  // As the trainer's hook.
  void entered(std::int64_t step, bool waiting);
  // For the trainer to count in, and for its communicators.
  Observed& observed() { return observed_; }

 private:
  WorkerStatus status();
  RankWatch::Options watch_options(const Options& options);
  [[noreturn]] void leave(const LaunchedWorld& world, std::int64_t rank, const std::string& reason);

  Observed observed_;
  PaceMeter meter_{observed_.collectives};
  std::mutex mutex_;
  std::int64_t step_ = -1;
  bool waiting_ = true;
  Pace pace_;
  StorageProbe storage_;
  HangReport report_;
  RankWatch watch_;  // its thread uses all of the above
};

}  // namespace scaletrain
