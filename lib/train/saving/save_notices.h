// What people are told about saves: that they fail, that they hold training up, that leaving may take longer than this
// process is given; and when one that failed is tried again. No save, no file, no other rank.
//
// Used by one thread at a time: that of training, or the one that writes in the background until its end is adopted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"
#include "telemetry/log.h"

namespace scaletrain {

class SaveNotices {
 public:
  struct Options {
    Log& log;
    bool is_first = true;  // rank 0: of what all ranks notice it alone speaks
    bool is_alone = true;
    bool background = true;                 // checkpoint.background
    std::optional<double> grace_seconds{};  // from the signal to the end of the process
    double retry_seconds = 60.0;            // after the first failure
  };
  // saved_step: of the checkpoint that training goes on from; -1: none.
  SaveNotices(Options options, std::int64_t saved_step)
      : options_(options), saved_step_(saved_step), last_good_(monotonic_now()) {}

  // The save of this step is there after so many seconds, all included.
  void saved(std::int64_t step, double seconds);
  // It failed after so many seconds; best: it would have been of the best state so far.
  void failed(std::int64_t step, bool best, double seconds, const std::string& failure);
  // Of a last save that failed at this step: what is lost with it, and what to do.
  std::string last_loss(std::int64_t step) const;
  // Training waited for the save before.
  void waited(std::int64_t step, double seconds);
  // Training went back to an older checkpoint.
  void went_back(std::int64_t step);

  // Since the last save's beginning or end: after a failure the next one does not wait for checkpoint.every. The pause
  // doubles with each failure in a row, to a quarter of an hour, and is never less than ten times what the failed save
  // took: trying costs little of training, nor much of a storage that is in trouble.
  bool retry_due(double seconds) const { return num_failed_ > 0 && seconds >= retry_pause_; }

 private:
  void tell_grace(std::int64_t step, double seconds);

  Options options_;
  std::int64_t saved_step_;
  MonotonicTime last_good_;
  std::int64_t num_failed_ = 0;
  double retry_pause_ = 0.0;
  double longest_wait_ = 0.0;  // that was told of
  bool told_grace_ = false;
};

// How long this process may go on after it was asked to leave: SCALETRAIN_GRACE_SECONDS if it is set (by
// scripts/slurm/train.sbatch, from the lead of its signal), in a job of SLURM its KillWait as that comes, in a pod of
// Kubernetes its terminationGracePeriodSeconds as that comes, else unknown.
std::optional<double> grace_seconds();

}  // namespace scaletrain
