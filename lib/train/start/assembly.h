// Builds what a training worker needs out of a run folder, and runs it: the one place that knows every layer.
#pragma once

#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "backend/backend.h"
#include "backend/cuda_module.h"
#include "base/process/exit_code.h"
#include "base/process/work_count.h"
#include "comm/rendezvous/key_value_store.h"
#include "config/config.h"
#include "plan/run_plan.h"
#include "store/rank_groups.h"
#include "train/data/data_left.h"
#include "train/start/run_folder.h"
#include "train/trainer.h"

namespace scaletrain {

// Which of a host's GPUs a rank computes on: those that see the same GPUs take them in turn.
struct GpuPlace {
  std::int64_t index = 0;  // of this rank among those that see the same
  std::int64_t ranks = 1;  // that see the same
  // GPUs that whoever started the run has found and judged; 0: nobody has. Of another number ranks would take others,
  // and share them otherwise.
  std::int64_t expected = 0;

  int device(int gpus) const { return static_cast<int>(index % gpus); }
  // Ranks that compute on this one's GPU, itself included.
  std::int64_t sharers(int gpus) const { return (ranks - index % gpus + gpus - 1) / gpus; }
  bool is_own() const { return expected > 0 && sharers(static_cast<int>(expected)) == 1; }
};

// Which rank of how many, and what connects them. The default is a run of one rank.
struct WorkerPlace {
  Rank rank{0};
  std::int64_t world = 1;
  std::int64_t local_rank = 0;          // among the ranks of this host: the first one builds the token cache
  GpuPlace gpus{};                      // where ranks compute on GPUs
  KeyValueStore* rendezvous = nullptr;  // null: a single rank
  // The same for the thread that writes checkpoints in the background; null: `rendezvous` serves any thread.
  KeyValueStore* background_rendezvous = nullptr;
  // How its communicators are made, once the plan is known: what a rank may have to wait for follows from it.
  // They may have the rank's backend copy, as long as they live.
  std::function<CommunicatorFactory(const PhasePlan&, const LaunchConfig&, Backend&)> make_communicators{};
  // What there is to say of the ways in which they reach the other ranks, once they are made; empty: nothing.
  std::function<std::string()> connection_notice{};
  // By what they reach them, where that is worth a line; likewise.
  std::function<std::string()> connection_words{};
  // Processors per thread of this rank's kernels: less than 1 where the ranks of a host are more than its processors.
  // The device's peak is measured thread by thread, and no more of it is there to reach.
  double processors_per_thread = 1.0;
};

struct WorkerOptions {
  WorkerPlace place{};
  RunPaths paths{std::filesystem::path()};
  StartPoint start;
  std::optional<std::int64_t> data_degree{};  // in place of the config's parallel.data: a world of another size
  std::string version;                        // of the program
  TrainerHooks hooks;
  // Hears of an error, once, before anything is torn down; train_run throws it afterwards. A single rank finishes a
  // save that is under way before it tells, since its end is all that is waited for then.
  std::function<void(const std::exception_ptr&)> failed{};
  // Hears, once the plan is known, what there is to say should memory run out: the plan of this rank's.
  std::function<void(const std::string&)> knows_memory{};
  WorkCount* work = nullptr;  // counts what this rank has done; null: nobody watches it
  // Of the host: the backend's where it computes on processors, and of what else the start does by several. 0: the
  // processors this process may run on.
  int threads = 0;
  // How its backend is made: of the host's processors, and of a GPU.
  std::function<std::unique_ptr<Backend>(const CpuOptions&)> make_backend = make_cpu_backend;
  std::function<std::unique_ptr<Backend>(const CudaOptions&)> make_gpu_backend = [](const CudaOptions& options) {
    return CudaModule(cuda_module_path()).make_backend(options);
  };
  std::function<int()> count_gpus = [] { return CudaModule(cuda_module_path()).num_devices(); };
  std::FILE* console = stderr;  // where people see the progress; not closed
  // The device's peak is measured once, at start, for at most this long; 0: not measured, and mfu is 0.
  double calibration_seconds = 0.2;
  std::int64_t looked_up_samples = most_looked_up;  // to count what the epoch caps leave
};

// Reads the run folder's config.yaml, trains, returns the exit code of a run that came to its end: finished or
// interrupted. Everything else is thrown.
ExitCode train_run(const WorkerOptions& options);

// The tokenizer's vocabulary size and so the plan, without opening data: what check and run do before anything is
// touched.
RunPlan plan_for(const Config& config, std::optional<std::int64_t> world);

// Of the backend of a rank of this plan, with so many threads where it computes on processors.
std::size_t workspace_of_rank(const PhasePlan& phase, int threads);

// What there is to say of the rank of these options should memory run out before its plan is known to knows_memory:
// that of the run's beginning. Reads the run folder's config.yaml.
std::string early_memory_words(const WorkerOptions& options);

}  // namespace scaletrain
