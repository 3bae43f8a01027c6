// The rows of the equivalence suite on GPUs, ranks as threads, each with a stream of its own on the one GPU that there
// is, exchanging through the host's memory: on this machine's every fourth row and by night all, on one that the host
// carries out a few, which take it long.
#include <doctest/doctest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "equivalence_checks.h"
#include "equivalence_rows.h"
#include "support/cuda/gpu_under_test.h"
#include "support/models/optimizer_kinds.h"

using namespace scaletrain;
using namespace scaletrain::equivalence;

namespace {

LayoutRun on_gpu(LayoutRun run, bool by_graphs = false) {
  run.make_gpu = [by_graphs](DType compute) { return make_gpu(CudaOptions{.compute = compute, .graphs = by_graphs}); };
  return run;
}

// Every so many-th row, from the middle of the first so many on; all by night. Of a GPU that the host carries out only
// `of_host` rows, of few ranks and layers.
std::vector<Row> rows_of(std::size_t stride, std::size_t of_host) {
  std::vector<Row> rows = make_rows();
  if (is_gpu_of_host()) {
    std::erase_if(rows, [](const Row& row) {
      return row.data * row.tensor * row.pipeline != 2 || run_of(row).config.model.layers > 4;
    });
    REQUIRE(rows.size() >= of_host);
    stride = rows.size() / of_host;
  } else if (std::getenv("SCALETRAIN_SOAK_STEPS") != nullptr) {
    stride = 1;
  }
  std::vector<Row> chosen;
  for (std::size_t i = stride / 2; i < rows.size(); i += stride)
    if (!is_gpu_of_host() || chosen.size() < of_host) chosen.push_back(rows[i]);
  return chosen;
}

void check_rows_in(DType half, std::size_t stride) {
  std::map<std::string, Baseline> known;
  WorstOfAll worst;
  for (const Row& row : rows_of(stride, 1)) {
    const auto [entry, is_new] = known.try_emplace(baseline_key(row));
    if (is_new) entry->second = run_baseline(on_gpu(in_half(baseline_of(row), half)));
    check_run(equivalence::text(row), on_gpu(in_half(run_of(row), half)), half_tolerance, entry->second, worst);
  }
  worst.tell();
}

}  // namespace

TEST_CASE("layouts_on_a_gpu_have_the_numbers_of_one_rank_and_issue_the_planned_calls_in_order") {
  if (is_gpu_missing()) return;
  std::map<std::string, Baseline> known;
  WorstOfAll worst;
  bool by_graphs = false;
  for (const Row& row : rows_of(4, 2)) {
    const auto [entry, is_new] = known.try_emplace(baseline_key(row));
    if (is_new) entry->second = run_baseline(on_gpu(baseline_of(row)));
    check_row_run(equivalence::text(row), on_gpu(run_of(row), by_graphs), entry->second, worst);
    by_graphs = !by_graphs;
  }
  worst.tell();
}

TEST_CASE("layouts_on_a_gpu_in_bf16_have_the_numbers_of_one_rank_within_what_its_rounding_allows") {
  if (!is_gpu_missing()) check_rows_in(DType::bf16, 13);
}

TEST_CASE("layouts_on_a_gpu_in_fp16_have_the_numbers_of_one_rank_within_what_its_rounding_allows") {
  if (!is_gpu_missing()) check_rows_in(DType::f16, 11);
}

// Rows train by AdamW; gradients are compared above.
TEST_CASE("every_optimizer_on_layouts_of_a_gpu_has_the_losses_of_one_rank") {
  if (is_gpu_missing()) return;
  const std::vector<Row> rows = rows_of(9, 3);
  std::size_t next = 0;
  const bool is_host = is_gpu_of_host();
  for (const NamedOptimizer& named : optimizers_beside_adamw()) {
    const OptimizerKind kind = named.config.type;
    // The host takes long: those that ask for norms, whole matrices, or sums of rows and columns.
    if (is_host && kind != OptimizerKind::lamb && kind != OptimizerKind::muon && kind != OptimizerKind::adafactor)
      continue;
    const Row& row = rows[next++ % rows.size()];
    CAPTURE(named.name);
    CAPTURE(equivalence::text(row));
    const auto training = [&](LayoutRun run) {
      run.config.precision.reduce = Precision::fp32;
      run.config.train.optimizer = named.config;
      run.steps = is_host ? 2 : 5;
      return on_gpu(std::move(run));
    };
    check_steps(training(run_of(row)), training(baseline_of(row)));
  }
}

TEST_CASE("phases_and_steps_that_measure_noise_on_layouts_of_a_gpu_have_the_losses_of_one_rank") {
  if (is_gpu_missing()) return;
  for (const Row& row : rows_of(25, 1)) {
    CAPTURE(equivalence::text(row));
    check_steps(on_gpu(in_phases(run_of(row))), on_gpu(in_phases(baseline_of(row))));
    check_steps(on_gpu(measuring_noise(run_of(row))), on_gpu(measuring_noise(baseline_of(row))));
  }
}
