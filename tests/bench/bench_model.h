// What the measuring programs of one rank train: GPT-2 124M in fp32 with random tokens.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "backend/backend.h"
#include "base/text.h"
#include "bench_tools.h"
#include "config/keys/keys.h"
#include "nn/init.h"
#include "plan/run_plan.h"

namespace scaletrain {

inline Config bench_config(std::int64_t micro_batch, bool saves_in_background) {
  Config config;
  config.model = *find_model_preset("gpt2-124m");
  config.train.steps = 1000;
  config.train.micro_batch = micro_batch;
  config.train.global_batch = micro_batch;
  config.train.lr_schedule.warmup = 10;
  config.checkpoint.background = saves_in_background;
  return config;
}

// The plan and the initialised parameters, and how much memory there was before them: the library's code and tables are
// no part of the plan and are touched first.
struct BenchModel {
  BenchModel(std::int64_t micro_batch, int threads, bool saves_in_background)
      : config(bench_config(micro_batch, saves_in_background)),
        plan(make_run_plan(config, *config.model.vocab, std::nullopt)),
        phase(plan.phases.front()),
        backend(make_cpu_backend({.threads = threads})),
        stream(backend->make_stream()),
        layout(phase.layout(Rank(0))) {
    calibrate_matmul(*backend, *stream, 0.2);
    memory_before = peak_memory();
    store = std::make_unique<ParamStore>(*backend, phase.table, layout, phase.store_options(DType::f32));
    initialise_parameters(*store, *stream, 1, threads);
  }
  BenchModel(const BenchModel&) = delete;
  BenchModel& operator=(const BenchModel&) = delete;

  // What the peak has grown by, beside what the plan says.
  void print_memory() const {
    const std::uint64_t growth = peak_memory() - memory_before;
    const std::size_t planned = phase.memory(Rank(0), backend->workspace_bytes()).total();
    fmt::print("memory   VmHWM grew by {}, the plan says {}: ratio {:.3f}\n", bytes_text(growth), bytes_text(planned),
               static_cast<double>(growth) / static_cast<double>(planned));
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

}  // namespace scaletrain
