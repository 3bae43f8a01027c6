// Measures whole training steps of GPT-2 124M in fp32: tokens/s, the share of the matrix-product ceiling measured
// between the steps of the same run, and the growth of the process's peak memory against the plan. A tool, not a test:
// it asserts nothing.
//
// Usage: bench_training [steps] [threads] [micro-batch]
#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/text.h"
#include "bench_tools.h"
#include "config/keys.h"
#include "nn/init.h"
#include "optim/optimizer.h"
#include "plan/run_plan.h"

namespace scaletrain {
namespace {

Config bench_config(std::int64_t micro_batch) {
  Config config;
  config.model = *find_model_preset("gpt2-124m");
  config.train.steps = 1000;
  config.train.micro_batch = micro_batch;
  config.train.global_batch = micro_batch;
  config.train.lr_schedule.warmup = 10;
  config.checkpoint.background = false;  // nothing is saved
  return config;
}

void run(int steps, int threads, std::int64_t micro_batch) {
  const Config config = bench_config(micro_batch);
  const RunPlan plan = make_run_plan(config, *config.model.vocab, std::nullopt);
  const PhasePlan& phase = plan.phases.front();
  const auto backend = make_cpu_backend({.threads = threads});
  const auto stream = backend->make_stream();
  // The library's code and tables are no part of the plan: they are touched before the growth is counted.
  calibrate_matmul(*backend, *stream, 0.2);
  const std::uint64_t before = peak_memory();

  const auto optimizer = make_optimizer(config.train.optimizer);
  const ShardLayout layout = phase.layout(Rank(0));
  ParamStore store(*backend, phase.table, layout,
                   {.slot_names = {optimizer->slot_names().begin(), optimizer->slot_names().end()},
                    .gradients = true,
                    .dtype = DType::f32});
  initialise_parameters(store, 1, threads);
  store.values_changed();
  const Transformer model(phase.model);
  StageMemory memory(*backend, phase.activations(Rank(0)));
  StageExecutor executor({.backend = *backend, .stream = *stream, .model = model, .store = store, .memory = memory});
  RandomTokens source(phase.model.vocab, phase.model.context);
  const ExecutionOrder order = executor.order_of(phase.schedule(Rank(0)));
  StepBlock block;
  block.learning_rate = 1e-4;
  block.bias_correction1 = 0.1;
  block.bias_correction2 = 0.05;

  fmt::print("backend  {}\n", backend->description());
  const double tokens = static_cast<double>(phase.micro_batch.rows());
  const double flops = model_flops_per_token(phase.model) * tokens;
  std::vector<double> seconds;
  std::vector<double> shares;
  for (int step = 0; step <= steps; ++step) {
    const double ceiling_before = calibrate_matmul(*backend, *stream, 0.5);
    const MonotonicTime start = monotonic_now();
    store.zero_gradients(*stream);
    const ExecutionResult result = executor.train(order, source, phase.loss_gradient);
    optimizer->step(*backend, *stream, store, block);
    stream->synchronize();
    const double elapsed = seconds_since(start);
    const double ceiling = (ceiling_before + calibrate_matmul(*backend, *stream, 0.5)) / 2;
    if (step == 0) continue;  // pages are touched for the first time
    seconds.push_back(elapsed);
    shares.push_back(flops / elapsed / ceiling);
    fmt::print("step {:>3}  {:.2f} s  {:.0f} tokens/s  ceiling {:.1f} GFLOP/s  share {:.1f} %  loss {:.4f}\n", step,
               elapsed, tokens / elapsed, ceiling / 1e9, 100 * shares.back(),
               result.loss_sum / static_cast<double>(result.target_tokens));
  }
  const std::uint64_t growth = peak_memory() - before;
  const std::size_t planned = phase.memory(Rank(0), backend->workspace_bytes()).total();
  fmt::print("median   {:.0f} tokens/s, {:.1f} % of the matrix-product ceiling\n", tokens / median(seconds),
             100 * median(shares));
  fmt::print("memory   VmHWM grew by {}, the plan says {}: ratio {:.3f}\n", bytes_text(growth), bytes_text(planned),
             static_cast<double>(growth) / static_cast<double>(planned));
}

}  // namespace
}  // namespace scaletrain

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 5;
  const int threads = argc > 2 ? std::atoi(argv[2]) : 2;
  const int micro_batch = argc > 3 ? std::atoi(argv[3]) : 4;
  if (steps < 1 || threads < 1 || micro_batch < 1) {
    fmt::print(stderr, "usage: bench_training [steps] [threads] [micro-batch]\n");
    return 2;
  }
  scaletrain::run(steps, threads, micro_batch);
  return 0;
}
