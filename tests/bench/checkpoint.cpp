// Measures checkpoints of GPT-2 124M in fp32 that are written in the background: what they cost training, and the
// writer against the disk. A tool, not a test: it asserts nothing.
//
//   stall   how long training is held up by a save, as a share of the median step without one; how much longer the
//           steps take beside which a save is copied and written; the growth of VmHWM against the plan
//   write   a save of the copy, by turns with one file of as many bytes written in order and synced: both in bytes per
//           second, everything until the checkpoint is committed included
//
// Usage: bench_checkpoint [stall|write]... [--folder DIR] [--rounds N] [--micro-batch N]; without a name: both. About
// 3 GB of DIR (a new folder in it, removed at the end) are used.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "bench_tools.h"
#include "checkpoint/staging.h"
#include "config/keys.h"
#include "nn/init.h"
#include "optim/optimizer.h"
#include "plan/run_plan.h"
#include "telemetry/metrics_reader.h"
#include "train/checkpointer.h"
#include "train/step_runner.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::vector<std::string> names;
  fs::path folder = fs::temp_directory_path();
  int rounds = 5;
  int micro_batch = 1;
};

// Removed with everything in it.
class Workspace {
 public:
  explicit Workspace(const fs::path& parent) : path_(parent / fmt::format("bench-checkpoint-{}", ::getpid())) {
    fs::create_directories(path_ / "logs");
  }
  ~Workspace() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

Config bench_config(int micro_batch) {
  Config config;
  config.model = *find_model_preset("gpt2-124m");
  config.train.steps = 1000;
  config.train.micro_batch = micro_batch;
  config.train.global_batch = micro_batch;
  config.train.lr_schedule.warmup = 10;
  config.checkpoint.background = true;
  return config;
}

// What a run of one rank has.
struct Run {
  explicit Run(const Options& options)
      : config(bench_config(options.micro_batch)),
        plan(make_run_plan(config, *config.model.vocab, std::nullopt)),
        phase(plan.phases.front()),
        workspace(options.folder),
        paths(workspace.path()) {
    calibrate_matmul(*backend, *stream, 0.2);
    before = peak_memory();
    store = std::make_unique<ParamStore>(*backend, phase.table, layout, phase.store_options(DType::f32));
    initialise_parameters(*store, 1, backend->num_threads());
    store->values_changed();
  }

  Config config;
  RunPlan plan;
  const PhasePlan& phase;
  Workspace workspace;
  RunPaths paths;
  std::unique_ptr<Backend> backend = make_cpu_backend({.threads = 2});
  std::unique_ptr<Stream> stream = backend->make_stream();
  ShardLayout layout = phase.layout(Rank(0));
  std::uint64_t before = 0;
  std::unique_ptr<ParamStore> store;
};

void measure_stall(const Options& options) {
  constexpr std::int64_t steps_between = 3;
  Run run(options);
  const auto optimizer = make_optimizer(run.config.train.optimizer);
  const Transformer model(run.phase.model);
  StageMemory memory(*run.backend, run.phase.activations(Rank(0)));
  const RankGroups groups;
  StepRunner runner({.plan = run.phase,
                     .rank = Rank(0),
                     .backend = *run.backend,
                     .stream = *run.stream,
                     .model = model,
                     .store = *run.store,
                     .optimizer = *optimizer,
                     .memory = memory,
                     .groups = groups});
  RandomTokens source(run.phase.model.vocab, run.phase.model.context);
  StepSettings settings;
  settings.learning_rate = 1e-4;
  Log log(LogOptions{.standard_error = true});
  MetricsWriter metrics(run.paths.metrics());
  RunState state;
  std::vector<double> plain;
  std::vector<double> beside;
  {
    Checkpointer checkpoints({.config = run.config,
                              .plan = run.phase,
                              .stream = *run.stream,
                              .store = *run.store,
                              .rank = Rank(0),
                              .paths = run.paths,
                              .metrics = &metrics,
                              .log = log,
                              .tokenizer_files = {},
                              .fingerprint = "",
                              .may_commit = {},
                              .entered = {}},
                             state);
    // The first step touches memory and stands for nothing; the first save comes after it.
    bool is_beside = false;
    const std::int64_t steps = 1 + options.rounds * steps_between;
    while (state.step < steps) {
      const MonotonicTime start = monotonic_now();
      runner.step(source, settings, {}, [&] { checkpoints.before_update(); });
      const double elapsed = seconds_since(start);
      ++settings.update;
      ++state.step;
      checkpoints.poll();
      if (state.step > 1) (is_beside ? beside : plain).push_back(elapsed);
      fmt::print("step {:>3}  {:.2f} s{}\n", state.step, elapsed, is_beside ? "  beside a save" : "");
      is_beside = state.step % steps_between == 1 && state.step < steps;
      if (is_beside) checkpoints.save({});
    }
    checkpoints.settle();
  }
  std::vector<double> stalls;
  double longest = 0.0;
  for (const CheckpointRecord& record : read_metrics(run.paths.metrics()).checkpoints) {
    stalls.push_back(record.stall_seconds);
    longest = std::max(longest, record.stall_seconds);
    fmt::print("save of step {:>3}  {:.3f} s held up ({:.3f} s for the one before), written in {:.2f} s\n", record.step,
               record.stall_seconds, record.waited_seconds, record.seconds);
  }
  const double step = median(plain);
  const std::uint64_t growth = peak_memory() - run.before;
  const std::size_t planned = run.phase.memory(Rank(0), run.backend->workspace_bytes()).total();
  fmt::print("stall    {:.1f} % of a step of {:.2f} s (median), {:.1f} % (the first), {:.1f} % (the longest)\n",
             100 * median(stalls) / step, step, 100 * stalls.front() / step, 100 * longest / step);
  fmt::print("beside   a step beside a save takes {:.1f} % longer (median)\n", 100 * (median(beside) / step - 1.0));
  fmt::print("memory   VmHWM grew by {}, the plan says {}: ratio {:.3f}\n", bytes_text(growth), bytes_text(planned),
             static_cast<double>(growth) / static_cast<double>(planned));
}

// What was removed is given back to the disk at the next sync, and a disk that is shared may owe somebody a pause.
void let_disk_rest() {
  ::sync();
  std::this_thread::sleep_for(std::chrono::seconds(3));
}

// Seconds for one file of these bytes, written in order and synced.
double write_plainly(const fs::path& path, std::span<const std::byte> bytes) {
  let_disk_rest();
  // The fastest where this was tried: large pieces make the kernel look for large stretches of free memory.
  constexpr std::size_t piece = 256u << 10;
  const MonotonicTime start = monotonic_now();
  FileWriter writer(path);
  for (std::size_t offset = 0; offset < bytes.size(); offset += piece)
    writer.write(bytes.subspan(offset, std::min(piece, bytes.size() - offset)));
  writer.finish();
  const double seconds = seconds_since(start);
  fs::remove(path);
  return seconds;
}

void measure_write(const Options& options) {
  Run run(options);
  StateStaging staging(*run.store);
  staging.prefault();
  staging.copy();
  const std::vector<std::byte> bytes(staging.bytes(), std::byte{0x5a});
  std::vector<double> plain;
  std::vector<double> saved;
  for (int round = 0; round <= options.rounds; ++round) {
    // Now the one and now the other goes first: what a disk has just done is felt by what follows.
    double plain_seconds = 0.0;
    if (round % 2 == 0) plain_seconds = write_plainly(run.paths.folder / "plain", bytes);
    SaveRequest request;
    request.folder = run.paths.checkpoints();
    request.manifest.step = round;
    let_disk_rest();
    const MonotonicTime start = monotonic_now();
    const SaveResult result = save_checkpoint(staging, request);
    const double saved_seconds = seconds_since(start);
    fs::remove_all(result.path);
    if (round % 2 != 0) plain_seconds = write_plainly(run.paths.folder / "plain", bytes);
    fmt::print("round {}  one file {:.2f} s ({}/s)  save {:.2f} s ({}/s)  {:.1f} %\n", round, plain_seconds,
               bytes_text(static_cast<std::uint64_t>(static_cast<double>(bytes.size()) / plain_seconds)), saved_seconds,
               bytes_text(static_cast<std::uint64_t>(static_cast<double>(result.bytes) / saved_seconds)),
               100 * plain_seconds / saved_seconds);
    if (round == 0) continue;  // the disk's caches, and blocks that were never used
    plain.push_back(plain_seconds);
    saved.push_back(saved_seconds);
  }
  fmt::print("write    {:.1f} % of the speed of one file that is written in order and synced (medians of {} rounds)\n",
             100 * median(plain) / median(saved), options.rounds);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool has_value = i + 1 < argc;
    if (argument == "stall" || argument == "write") {
      options.names.push_back(argument);
    } else if (argument == "--folder" && has_value) {
      options.folder = argv[++i];
    } else if (argument == "--rounds" && has_value) {
      options.rounds = std::max(1, std::atoi(argv[++i]));
    } else if (argument == "--micro-batch" && has_value) {
      options.micro_batch = std::max(1, std::atoi(argv[++i]));
    } else {
      fmt::print(stderr, "usage: bench_checkpoint [stall|write]... [--folder DIR] [--rounds N] [--micro-batch N]\n");
      std::exit(2);
    }
  }
  if (options.names.empty()) options.names = {"write", "stall"};
  return options;
}

}  // namespace
}  // namespace scaletrain

int main(int argc, char** argv) {
  const scaletrain::Options options = scaletrain::parse(argc, argv);
  for (const std::string& name : options.names) {
    if (name == "write") scaletrain::measure_write(options);
    if (name == "stall") scaletrain::measure_stall(options);
  }
  return 0;
}
