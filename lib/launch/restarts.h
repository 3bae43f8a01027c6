// What follows when a start has failed: the one sequence of decision, search for a start point, and words for people,
// for the agent of one host and for the coordinator of several.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/exit_code.h"
#include "launch/restart_policy.h"
#include "telemetry/log.h"
#include "train/run_folder.h"

namespace scaletrain {

class Restarts {
 public:
  struct Options {
    std::int64_t max_restarts = 3;
    std::int64_t first_step = 0;  // of the run's first start point
    Log& log;
    // The start after a failure; its errors are passed on. Without restarts it is not asked after a failure: nothing is
    // to be looked for then, or set aside.
    std::function<StartPoint(const StartPoint& before)> next_start;
    std::function<bool()> interrupted;  // by a signal: nothing is mended any more
    // Seconds for which a file system that does not let the checkpoints be read is asked again.
    double patience = 300.0;
  };
  explicit Restarts(Options options);

  struct Failure {
    std::string what{};  // for people; already in the log
    std::int64_t step = 0;
    bool is_lost_node = false;  // of an elastic run, which goes on without
  };
  struct Outcome {
    std::optional<ExitCode> end{};  // the run's; nothing: it goes on
    std::string reason{};           // of the end
    StartPoint start{};             // where it goes on
  };
  // before: the start point of the start that has failed.
  Outcome after(const Failure& failure, const StartPoint& before);
  // A start that follows no failure: the workers have saved and left, to begin again for that cause.
  StartPoint resume(const StartPoint& before, const std::string& cause);

 private:
  StartPoint next_start(const StartPoint& before) const;

  Options options_;
  RestartPolicy policy_;
};

}  // namespace scaletrain
