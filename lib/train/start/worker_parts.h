// The parts of a worker: everything that lives as long as its training, made from the run's config in order of
// dependence. Nothing here decides where the run goes on (beginning.h), nothing trains (trainer.h).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "base/error.h"
#include "config/config.h"
#include "data/dataset.h"
#include "data/tasks/choice_task.h"
#include "infer/stage_memory.h"
#include "optim/optimizer.h"
#include "plan/run_plan.h"
#include "store/param_store.h"
#include "store/rank_groups.h"
#include "telemetry/log.h"
#include "telemetry/progress.h"
#include "train/start/assembly.h"
#include "train/start/start_up.h"

namespace scaletrain {

// With the plan of the memory beside it. there_is: what is known of the memory there is, which is put at the end.
std::string out_of_memory_text(const PhasePlan& phase, Rank rank, std::size_t workspace, std::string_view when,
                               std::string_view there_is);

// Of the host, that this rank may use.
int host_threads(const WorkerOptions& options);

struct WorkerParts {
  // read: what the run has read so far.
  WorkerParts(const WorkerOptions& options, Config run_config, std::vector<MixSource> read, StartUp& start_up);

  bool is_first() const { return rank == Rank(0); }
  // With the plan of the memory beside it.
  InputError out_of_memory(std::string_view when) const;

  Config config;
  Rank rank;
  std::unique_ptr<Tokenizer> tokenizer;
  RunPlan plan;
  const PhasePlan& phase;
  int gpu = 0;                   // by the number that this process sees it by
  std::int64_t gpu_sharers = 1;  // ranks on this one's GPU, itself included; 1 on processors
  std::unique_ptr<Backend> backend;
  std::uint64_t device_memory_before;  // of the device's, before the plan's: others' and CUDA's own
  std::unique_ptr<Stream> stream;
  RankGroups groups;
  std::uint64_t device_memory_of_groups;  // of the device's, about: whatever has come to be in use while they were made
  std::int64_t num_gpus;                  // that all ranks together compute on; 0: on processors
  Transformer model;
  std::unique_ptr<Optimizer> optimizer;
  ShardLayout layout;
  ProgressPrinter progress;
  Log log;
  bool has_connection_notice = false;  // told of how this rank reaches others
  std::unique_ptr<TrainingData> data;
  std::vector<std::unique_ptr<ValidationSet>> validation;
  std::vector<std::unique_ptr<ChoiceTask>> tasks;
  std::vector<SourceContent> contents;  // of the training data, then of the sets
  // To which a restart after a failure keeps (data_files.h); empty where somebody starts the run.
  std::vector<SourceFiles> files_of_start;
  std::unique_ptr<ParamStore> store;
  std::unique_ptr<StageMemory> memory;

 private:
  LogOptions log_options(const WorkerOptions& options);
  std::unique_ptr<Backend> make_backend(const WorkerOptions& options);
  std::unique_ptr<Backend> make_gpu_backend(const WorkerOptions& options);
  RankGroups connect(const WorkerOptions& options);
  std::string memory_of_groups_text() const;
  std::int64_t count_gpus() const;
  // Takes and returns what opening the data finds out, as claim_text() has it.
  std::string open_data(const WorkerOptions& options, const std::string& found_by_first, DataCheck check,
                        const std::vector<MixSource>& read);
  void allocate(WorkCount* work);
};

// Says which bits a run's results depend on.
std::string fingerprint_of(const WorkerParts& parts);

}  // namespace scaletrain
