// What follows when a start has failed: the one sequence of decision, search for a start point, and words for people.
// The search takes as long as the file system does not let the checkpoints be read: who has others to answer meanwhile
// asks for the outcome again and again.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/process/exit_code.h"
#include "launch/coordination/restart_policy.h"
#include "telemetry/log.h"
#include "train/start/run_folder.h"

namespace scaletrain {

class Restarts {
 public:
  struct Options {
    std::int64_t max_restarts = 3;
    std::int64_t first_step = 0;  // of the run's first start point
    Log& log;
    // The start after a failure; its errors are passed on. Without restarts it is not asked after a failure: nothing is
    // to be looked for then, or quarantined.
    std::function<StartPoint(const StartPoint& before)> next_start;
    std::function<bool()> interrupted;  // by a signal: nothing is mended any more
    // Seconds for which a file system that does not let the checkpoints be read is asked again.
    double patience = 300.0;
  };
  explicit Restarts(Options options);

  struct Failure {
    std::string what{};  // for people; already in the log
    std::int64_t step = 0;
    bool is_lost_place = false;  // of an elastic run, which goes on without
  };
  struct Outcome {
    std::optional<ExitCode> end{};  // the run's; nothing: it goes on
    std::string reason{};           // of the end
    StartPoint start{};             // where it goes on
  };
  // The start that began at `before` has failed.
  void failed(Failure failure, const StartPoint& before);
  // It has not: its workers have saved and left, to begin again for that cause.
  void resume(const StartPoint& before, const std::string& cause);
  // What follows; nothing while the checkpoints cannot be read, for no longer than the patience. now: seconds of a
  // clock that does not go back. Takes no longer than one look at the checkpoints.
  std::optional<Outcome> outcome(double now);

 private:
  Outcome conclude(StartPoint start);
  std::optional<StartPoint> look_for_start(double now);

  Options options_;
  RestartPolicy policy_;

  // Of the start that has ended.
  std::optional<Failure> failure_{};  // nothing: it was to begin again
  std::string cause_{};
  StartPoint before_{};
  std::optional<Outcome> decided_{};         // without a search
  std::optional<double> searching_since_{};  // the first look that failed
  double next_look_ = 0.0;
};

}  // namespace scaletrain
