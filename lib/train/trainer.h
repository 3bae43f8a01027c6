// The step loop: batches, forward and backward, the update, evaluation, early stopping, checkpoints, metrics. It knows
// interfaces only; assembly.h builds what it runs on.
//
// Every rank runs one; all take the same decisions, from what StepRunner sums over the world (a wish to leave or to
// save is a vote of the step) and from how a save ended. Rank 0 alone writes metrics and progress, commits checkpoints
// and prunes them.
//
// After every step the state is complete: whatever ends the loop between two steps loses nothing that a checkpoint of
// that moment would not restore to the bit.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/rendezvous/key_value_store.h"
#include "config/config.h"
#include "data/dataset.h"
#include "data/tasks/choice_task.h"
#include "plan/run_plan.h"
#include "telemetry/log.h"
#include "telemetry/metrics.h"
#include "telemetry/progress.h"
#include "train/run_state.h"
#include "train/start/run_folder.h"
#include "train/step/step_runner.h"

namespace scaletrain {

// What the process that runs the trainer answers and hears.
struct TrainerHooks {
  std::function<bool()> interrupted;  // finish this step, save, and leave
  // The same, asked while an evaluation goes on, which is given up then and made by the next start. Empty: never.
  std::function<bool()> interrupts_evaluation{};
  // Whether this process still owns the run: asked right before a checkpoint appears under its name, before old ones
  // are removed, and where somebody else has written to the metrics. By any thread.
  std::function<bool()> may_commit;
  // What the trainer is about to do, for supervision: while `waiting_on_storage` no progress is expected.
  std::function<void(std::int64_t step, bool waiting_on_storage)> entered;
};

enum class TrainOutcome { finished, stopped_early, interrupted };

// Of all ranks' devices together, of which mfu is a share.
struct DevicePeak {
  double flops = 0.0;  // FLOP/s; 0: not known, and no share
  // Rather than given, or a data sheet's. A processor may clock higher than it did then: a step that reaches more
  // raises it.
  bool is_measured = false;
};

struct TrainerParts {
  const Config& config;
  const PhasePlan& plan;
  Stream& stream;
  ParamStore& store;
  StepRunner& runner;
  Rank rank;
  KeyValueStore* rendezvous = nullptr;             // null: a single rank
  KeyValueStore* background_rendezvous = nullptr;  // see WorkerPlace
  TrainingData& data;                              // enters the phases of the run
  const std::vector<std::unique_ptr<ValidationSet>>& validation;
  const std::vector<std::unique_ptr<ChoiceTask>>& tasks;
  RunPaths paths;
  MetricsWriter* metrics;  // rank 0's; null on the others
  ProgressPrinter& progress;
  Log& log;
  std::vector<TokenizerFile> tokenizer_files;
  std::string fingerprint;
  LayoutRecord layout{};      // for the metrics
  DeviceRecord device{};      // the same
  WorkCount* work = nullptr;  // of what is loaded, and copied to be saved
  DevicePeak peak{};
  double elapsed_before = 0.0;  // seconds of training that earlier starts of the run took
  TrainerHooks hooks;
};

class Trainer {
 public:
  Trainer(const TrainerParts& parts, RunState state);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Until the last step, an early stop or an interruption; a checkpoint of the last state exists then. DivergedError
  // when the non-finite policy or the rollbacks of the spike policy are exhausted; InputError for data that fails and
  // for a last checkpoint that cannot be written.
  TrainOutcome run();
  // After run() has thrown: finishes the save that is under way, if there is one, while the rank is in the state of
  // waiting, and logs the reason before. Never throws. Not for one of several ranks, whose peers may be gone: there the
  // destructor gives the save up.
  void finish_save(const std::string& reason);
  const RunState& state() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace scaletrain
