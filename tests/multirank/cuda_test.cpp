// Training on the backend of GPUs, whose ranks exchange through the host's memory. Where the host carries out kernels
// and runtime (tests/support/cuda) streams run late, so what is not ordered behind another stream shows here as it does
// on other late backends.
#include <doctest/doctest.h>

#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "store/staged_communicator.h"
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

std::unique_ptr<Backend> make_backend(DType compute, On on) {
  if (on != On::cpu) return make_gpu(CudaOptions{.compute = compute, .graphs = on == On::gpu_by_graphs});
  return make_cpu_backend({.threads = 1, .instruction_set = "auto", .compute = compute});
}

// Of rank 0, in some steps and an evaluation.
Numbers train(const Config& config, DType compute, On on, int steps = 3) {
  PhasePlan plan = make_run_plan(config, config.model.vocab.value_or(257), std::nullopt).phases.front();
  plan.compute = compute;
  if (on != On::cpu) plan.compute_on(*make_gpu(compute));
  Numbers numbers;
  RanksOptions options;
  std::vector<std::unique_ptr<Backend>> copying(static_cast<std::size_t>(plan.mesh.world()));  // for communicators
  if (on != On::cpu) {
    options.mode = DirectOptions::Mode::caller;
    options.decorate = [&](Rank rank, GroupKind kind, std::unique_ptr<Communicator> group) {
      if (is_control(kind)) return group;
      std::unique_ptr<Backend>& backend = copying[static_cast<std::size_t>(rank.value())];
      if (!backend) backend = make_gpu(compute);
      return make_staged_communicator(std::move(group), *backend);
    };
  }
  const auto train_rank = [&](Rank rank, RankGroups& groups, InProcessWorld&) {
    RankTrainer trainer(config, plan, rank, groups, make_backend(compute, on));
    for (int step = 0; step < steps; ++step) {
      const StepRunner::Result result = trainer.step();
      if (rank.value() != 0) continue;
      numbers.losses.push_back(result.outcome.loss);
      numbers.grad_norms.push_back(result.outcome.grad_norm);
    }
    const double loss_sum = trainer.evaluate(5).loss_sum;
    if (rank.value() == 0) numbers.evaluation = loss_sum;
  };
  run_ranks(plan.mesh, plan.group_facts(), train_rank, options);
  return numbers;
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
