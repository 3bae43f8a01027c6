// Measures whole training steps of GPT-2 124M in fp32: tokens/s, the share of the matrix-product ceiling measured
// between the steps of the same run, and the growth of the process's peak memory against the plan. A tool, not a test:
// it asserts nothing.
//
// Usage: bench_training [steps] [threads] [micro-batch]
#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bench_model.h"
#include "optim/optimizer.h"

namespace scaletrain {
namespace {

void run(int steps, int threads, std::int64_t micro_batch) {
  BenchModel bench(micro_batch, threads, /*saves_in_background=*/false);
  const PhasePlan& phase = bench.phase;
  Backend* const backend = bench.backend.get();
  Stream* const stream = bench.stream.get();
  ParamStore& store = *bench.store;
  const auto optimizer = make_optimizer(bench.config.train.optimizer);
  const Transformer model(phase.model);
  StageMemory memory(*backend, phase.activations(Rank(0)));
  StageExecutor executor({.backend = *backend, .stream = *stream, .model = model, .store = store, .memory = memory});
  RandomTokens source(phase.model.vocab, phase.model.context);
  const ExecutionOrder order = executor.order_of(phase.schedule(Rank(0)));
  StepScalars block;
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
  fmt::print("median   {:.0f} tokens/s, {:.1f} % of the matrix-product ceiling\n", tokens / median(seconds),
             100 * median(shares));
  bench.print_memory();
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
