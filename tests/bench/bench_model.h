// What the measuring programs of one rank train: a model of a preset's or the benchmarks' own shape, random tokens.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda_module.h"
#include "base/text.h"
#include "bench_tools.h"
#include "config/keys/keys.h"
#include "config/load.h"
#include "nn/init.h"
#include "optim/optimizer.h"
#include "optim/slow_mean.h"
#include "plan/run_plan.h"
#include "support/random_tokens.h"
#include "support/resident_memory.h"
#include "train/step/step_runner.h"

namespace scaletrain {

// A preset's name, or "llama-150m" or "llama-1.5b": rotary positions, RMS norms, SwiGLU, three or two query heads to a
// key/value head.
inline ModelConfig bench_model_config(const std::string& name) {
  const bool is_large = name == "llama-1.5b";
  if (name != "llama-150m" && !is_large) {
    const ModelConfig* const preset = find_model_preset(name);
    if (preset == nullptr) throw std::runtime_error("there is no model " + name);
    return *preset;
  }
  ModelConfig model;
  model.layers = is_large ? 30 : 16;
  model.hidden = is_large ? 2048 : 768;
  model.heads = is_large ? 16 : 12;
  model.kv_heads = is_large ? 8 : 4;
  model.ffn_hidden = is_large ? 5632 : 2048;
  model.vocab = 32000;
  model.norm = NormKind::rmsnorm;
  model.activation = ActivationKind::swiglu;
  model.position = PositionKind::rope;
  model.bias = false;
  model.tie_embeddings = false;
  return model;
}

struct BenchSettings {
  std::string model = "gpt2-124m";
  std::int64_t context = 1024;
  Precision compute = Precision::fp32;
  std::int64_t micro_batch = 4;
  std::int64_t micro_batches = 1;  // of a step
  int threads = 2;
  bool saves_in_background = false;
  DeviceKind device = DeviceKind::cpu;
  bool cuda_graphs = false;
  RecomputeKind recompute = RecomputeKind::none;
  std::vector<std::string> overrides{};  // KEY=VALUE of train.optimizer
};

inline Config bench_config(const BenchSettings& settings) {
  Config config;
  config.model = bench_model_config(settings.model);
  config.model.context = settings.context;
  config.run.device = settings.device;
  config.run.cuda_graphs = settings.cuda_graphs;
  config.precision.compute = settings.compute;
  config.train.steps = 1000;
  config.train.micro_batch = settings.micro_batch;
  config.train.recompute = settings.recompute;
  config.train.global_batch = settings.micro_batch * settings.micro_batches;
  config.train.lr_schedule.warmup = 10;
  config.checkpoint.background = settings.saves_in_background;
  if (settings.overrides.empty()) return config;
  // All else a benchmark says by its case and options, or its steps do not do.
  const std::string section = "train.optimizer.";
  for (const std::string& text : settings.overrides)
    if (!text.starts_with(section) || text.starts_with(section + "learning_rate") ||
        text.starts_with(section + "scale_with_batch"))
      throw std::runtime_error("--set " + text + ": keys of train.optimizer are expected, but for its learning rate");
  // Nothing reads it: a config without a source is refused.
  config.data.train.emplace_back().path = "/dev/null";
  return parse_config(resolved_yaml(config), "the benchmark's config", "/", settings.overrides,
                      [](const std::string&) { return std::nullopt; })
      .config;
}

// The plan and the initialised parameters, and how much memory there was before them: the library's code and tables are
// no part of the plan and are touched first.
struct BenchModel {
  // What is put around the backend, if anything.
  using Wrap = std::function<std::unique_ptr<Backend>(std::unique_ptr<Backend>)>;

  explicit BenchModel(const BenchSettings& settings, const Wrap& wrap = {})
      : config(bench_config(settings)),
        plan(make_run_plan(config, *config.model.vocab, std::nullopt)),
        phase(plan.phases.front()),
        backend(made({.threads = settings.threads, .compute = phase.compute}, settings.device, wrap)),
        stream(backend->make_stream()),
        layout(phase.layout(Rank(0))) {
    calibrate_matmul(*backend, *stream, 0.2);
    backend->prepare(*stream);
    memory_before = memory_now();
    store = std::make_unique<ParamStore>(*backend, phase.table, layout, phase.store_options());
    initialise_parameters(*store, *stream, 1, settings.threads);
  }
  BenchModel(const BenchModel&) = delete;
  BenchModel& operator=(const BenchModel&) = delete;

  // Of the host the peak; of a GPU what is in use, which nothing gives back.
  std::uint64_t memory_now() const {
    return is_host_accessible(backend->space()) ? peak_memory() : backend->device_memory_in_use();
  }
  std::uint64_t memory_growth() const { return memory_now() - memory_before; }
  // Of a GPU without what its process had before.
  std::size_t planned_memory() const {
    const MemoryPlan memory = phase.memory(Rank(0), backend->workspace_bytes());
    if (is_host_accessible(phase.space)) return memory.total();
    std::size_t bytes = memory.total() - memory.total_of_host();
    for (const MemoryItem& item : memory.items)
      if (item.purpose == process_memory) bytes -= item.bytes;
    return bytes;
  }
  // What the peak has grown by, beside what the plan says.
  void print_memory() const {
    const std::uint64_t growth = memory_growth();
    const std::size_t planned = planned_memory();
    fmt::print("memory   VmHWM grew by {}, the plan says {}: ratio {:.3f}\n", bytes_text(growth), bytes_text(planned),
               static_cast<double>(growth) / static_cast<double>(planned));
  }

  std::unique_ptr<Backend> made(const CpuOptions& options, DeviceKind device, const Wrap& wrap) {
    std::unique_ptr<Backend> made;
    if (device == DeviceKind::cuda)
      made = CudaModule(cuda_module_path())
                 .make_backend({.compute = options.compute,
                                .tf32 = config.compute_precision() == Precision::tf32,
                                .graphs = config.run.cuda_graphs});
    else
      made = make_cpu_backend(options);
    for (PhasePlan& of_run : plan.phases) of_run.compute_on(*made);
    return wrap ? wrap(std::move(made)) : std::move(made);
  }

  Config config;
  RunPlan plan;
  const PhasePlan& phase;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
  ShardLayout layout;
  std::uint64_t memory_before = 0;
  std::unique_ptr<ParamStore> store;
};

// Steps of training on it, of random tokens.
struct BenchSteps {
  explicit BenchSteps(BenchModel& bench)
      : optimizer(make_optimizer(bench.config.train.optimizer)),
        model(bench.phase.transformer(Rank(0))),
        memory(*bench.backend, bench.phase.activations(Rank(0))),
        runner({.plan = bench.phase,
                .rank = Rank(0),
                .backend = *bench.backend,
                .stream = *bench.stream,
                .model = model,
                .store = *bench.store,
                .optimizer = *optimizer,
                .memory = memory,
                .groups = groups}),
        source(bench.phase.model.vocab, bench.phase.model.context) {
    settings.learning_rate = 1e-4;
    settings.clip_norm = 1.0;
    settings.beta1 = bench.config.train.optimizer.beta1;
    settings.beta2 = bench.config.train.optimizer.beta2;
    settings.slow = slow_mean_at(bench.config.train.optimizer, 1, *bench.config.train.steps);
  }
  BenchSteps(const BenchSteps&) = delete;
  BenchSteps& operator=(const BenchSteps&) = delete;

  StepRunner::Result step(const StepRunner::BeforeUpdate& before_update = {}) {
    const StepRunner::Result result = runner.step(source, settings, {}, before_update);
    ++settings.update;
    return result;
  }

  std::unique_ptr<Optimizer> optimizer;
  Transformer model;
  StageMemory memory;
  RankGroups groups;
  StepRunner runner;
  RandomTokens source;
  StepSettings settings;
};

}  // namespace scaletrain
