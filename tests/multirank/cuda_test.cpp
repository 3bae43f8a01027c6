// Training on the backend of GPUs, whose ranks exchange through the host's memory. Where the host carries out kernels
// and runtime (tests/support/cuda) streams run late, so what is not ordered behind another stream shows here as it does
// on other late backends.
#include <doctest/doctest.h>

#include <cstdint>
#include <iterator>
#include <vector>

#include "support/cuda/gpu_under_test.h"
#include "support/models/tiny_model.h"
#include "support/ranks/rank_trainer.h"
#include "support/ranks/test_layout.h"

namespace scaletrain {
namespace {

struct Numbers {
  std::vector<double> losses, grad_norms;
  double evaluation = 0.0;

  bool operator==(const Numbers&) const = default;
};

enum class On { cpu, gpu, gpu_by_graphs };

LayoutOutcome run_on(const Config& config, DType compute, On on, int steps) {
  LayoutRun run{.config = config, .steps = steps, .evaluation_samples = 5};
  run.backend = compute == DType::bf16  ? TestBackend::cpu_bf16
                : compute == DType::f16 ? TestBackend::cpu_f16
                                        : TestBackend::cpu;
  if (on != On::cpu)
    run.make_gpu = [on](DType type) {
      return make_gpu(CudaOptions{.compute = type, .graphs = on == On::gpu_by_graphs});
    };
  LayoutOutcome outcome = run_layout(run);
  CHECK(outcome.problem == "");
  return outcome;
}

// In some steps and an evaluation.
Numbers train(const Config& config, DType compute, On on, int steps = 3) {
  const LayoutOutcome outcome = run_on(config, compute, on, steps);
  return {.losses = outcome.losses, .grad_norms = outcome.grad_norms, .evaluation = outcome.evaluation.loss_sum};
}

// By turns, where each configuration needs but one.
constexpr DType types[] = {DType::f32, DType::bf16, DType::f16};

// Both families, and layouts with every kind of transfer.
std::vector<Config> configs() {
  Config gpt2 = tiny_config({.layers = 2});
  gpt2.train.global_batch = 4;
  Config llama = gpt2;
  make_llama(llama.model);
  Config recomputed = gpt2;
  recomputed.train.recompute = RecomputeKind::full;
  std::vector<Config> all = {gpt2, llama, recomputed};
  for (const TestLayout& layout : {TestLayout{"", 2, 1, 1, 1}, TestLayout{"", 2, 1, 1, 3}, TestLayout{"", 1, 2, 1, 0},
                                   TestLayout{"", 1, 1, 2, 0, ScheduleKind::one_f_one_b}}) {
    all.push_back(layout.tensor > 1 ? llama : gpt2);
    lay_out(all.back(), layout);
  }
  return all;
}

}  // namespace

TEST_CASE("what_is_offloaded_changes_no_bit_of_a_gpus_training") {
  if (is_gpu_missing()) return;
  std::size_t number = 0;
  for (Config config : configs()) {
    CAPTURE(number);
    const DType compute = types[number++ % std::size(types)];
    const Numbers without = train(config, compute, On::gpu);
    config.train.optimizer.offload = OffloadKind::host;
    CHECK(train(config, compute, On::gpu) == without);
  }
}

TEST_CASE("cuda_graphs_change_no_bit_of_a_gpus_training") {
  if (is_gpu_missing()) return;
  constexpr int steps = 5;
  std::size_t number = 0;
  for (Config config : configs()) {
    CAPTURE(number);
    const DType compute = types[number++ % std::size(types)];
    if (number == 1) config.train.optimizer.offload = OffloadKind::host;
    const Numbers without = train(config, compute, On::gpu, steps);
    const auto before = graph_launches();
    CHECK(train(config, compute, On::gpu_by_graphs, steps) == without);
    // From the third step on, if not before.
    if (before) CHECK(*graph_launches() - *before >= 3);
  }
}

// Of one rank: those that exchange by NCCL are counted in nccl_test.cpp, and those that do so through the host's memory
// wait for each transfer.
TEST_CASE("the_host_waits_once_in_a_step_for_its_gpu_whatever_is_offloaded_or_launched_as_graphs") {
  if (is_gpu_missing() || !is_gpu_of_host()) return;
  std::size_t number = 0;
  for (Config config : configs()) {
    if (config.parallel.data.value_or(1) * config.parallel.tensor * config.parallel.pipeline > 1) continue;
    CAPTURE(number);
    const DType compute = types[number % std::size(types)];
    if (number++ % 2 == 1) config.train.optimizer.offload = OffloadKind::host;
    for (const On on : {On::gpu, On::gpu_by_graphs}) {
      CAPTURE(on == On::gpu_by_graphs);
      const LayoutOutcome outcome = run_on(config, compute, on, 4);
      CHECK(outcome.host_waits.size() == 1);
      for (const std::uint64_t waits : outcome.host_waits) CHECK(waits == 1);
    }
  }
}

TEST_CASE("a_gpus_backend_trains_to_the_numbers_of_the_processors") {
  if (is_gpu_missing()) return;
  for (const DType compute : {DType::f32, DType::bf16, DType::f16}) {
    // Kernels differ in the order of sums, and halves besides where they round.
    const double tolerance = compute == DType::f32 ? 1e-5 : compute == DType::f16 ? 1e-3 : 1e-2;
    std::size_t number = 0;
    for (const Config& config : configs()) {
      CAPTURE(number++);
      CAPTURE(to_text(compute));
      const Numbers gpu = train(config, compute, On::gpu);
      const Numbers cpu = train(config, compute, On::cpu);
      CHECK(largest_relative(gpu.losses, cpu.losses) <= tolerance);
      CHECK(largest_relative(gpu.grad_norms, cpu.grad_norms) <= 4 * tolerance);
      CHECK(largest_relative({gpu.evaluation}, {cpu.evaluation}) <= tolerance);
      if (compute == DType::bf16) CHECK(train(config, compute, On::gpu) == gpu);
    }
  }
}

}  // namespace scaletrain
