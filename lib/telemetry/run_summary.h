// What a run has come to over all of its starts: the lowest losses, the tokens, the time, the restarts and the resumes.
// Read once from metrics.jsonl when a start begins, kept up to date from then on.
//
// A restart at step s makes void what lies beyond s, also a lower loss; the time that was spent on it stays spent.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "telemetry/metrics.h"

namespace scaletrain {

struct LossAtStep {
  std::int64_t step = 0;
  double loss = 0;
};

// The lowest of a sequence of losses of which the end may be taken back.
class LowestLoss {
 public:
  // What is not finite is no loss.
  void add(std::int64_t step, double loss);
  void go_back(std::int64_t step);
  std::optional<LossAtStep> lowest() const;

 private:
  std::vector<LossAtStep> lows_;  // each lower than the one before, in the order of steps
};

// Not thread-safe.
class RunSummary {
 public:
  void add(const StepRecord& record);
  void add(const EvaluationRecord& record);
  void add(const TaskRecord& record);
  // Of a step that was added.
  void add(const SkipRecord& record);
  // Training went on at this step, for the cause that a `restart` line has.
  void add_restart(std::int64_t step, std::string_view cause);

  std::optional<LossAtStep> lowest_loss() const { return training_.lowest(); }
  // By the program itself, after a failure or a rollback.
  std::int64_t restarts() const { return restarts_; }
  // Nodes that came were taken in.
  std::int64_t growths() const { return growths_; }
  // Somebody started the run again.
  std::int64_t resumes() const { return resumes_; }
  // "no restart", "1 restart", "resumed twice", "3 restarts, grown once, resumed once".
  std::string starts_text() const;
  // The steps that changed no weight, in order, but for those by which a loss scale finds its level.
  const std::vector<std::int64_t>& skipped() const { return skipped_; }
  std::int64_t tokens() const { return last_.tokens; }
  double loss() const { return last_.loss; }
  // Of training, over all starts, without the time between them.
  double elapsed_seconds() const { return last_.elapsed_seconds; }

  struct ValidationLoss {
    std::string dataset;
    LossAtStep last;
    LossAtStep lowest;
  };
  // In the order of their names.
  std::vector<ValidationLoss> validation() const;

  struct AccuracyAtStep {
    std::int64_t step = 0;
    double accuracy = 0;
  };
  struct TaskAccuracy {
    std::string task;
    AccuracyAtStep last;
    AccuracyAtStep highest;
  };
  // The same.
  std::vector<TaskAccuracy> tasks() const;

  // The members of an `end` line that tell all this.
  void fill(EndRecord& record) const;

 private:
  void go_back(std::int64_t step);

  struct Validation {
    LowestLoss losses;
    LossAtStep last;
  };
  LowestLoss training_;
  std::map<std::string, Validation> validation_;
  std::map<std::string, Validation> tasks_;  // as losses: accuracies with the sign turned
  std::vector<std::int64_t> skipped_;
  StepRecord last_;
  std::int64_t restarts_ = 0;
  std::int64_t growths_ = 0;
  std::int64_t resumes_ = 0;
};

// Of a file's whole lines, in memory that does not grow with it. Lines that cannot be read are left out: a summary is
// not worth a run. An empty one where there is no file; InputError for one that cannot be read.
RunSummary summarize_metrics(const std::filesystem::path& file);

}  // namespace scaletrain
