// Recomputation on whole layouts: every bit is that of the same layout without it, and its calls are the planned ones.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "config/keys/keys.h"
#include "support/models/tiny_model.h"
#include "support/ranks/rank_trainer.h"
#include "support/ranks/test_layout.h"
#include "traffic.h"

using namespace scaletrain;

namespace {

Config recomputed_config(bool llama) {
  Config config = tiny_config({.layers = 4});
  config.run.seed = 5;
  config.train.steps = 50;
  config.train.global_batch = 8;
  config.train.micro_batch = 1;
  config.train.optimizer.learning_rate = 1e-3;
  if (llama) {
    make_llama(config.model);
    config.model.tie_embeddings = false;
  }
  return config;
}

// Every schedule with several micro-batches in flight, every ZeRO stage, tensor groups with sequence shards and
// without.
const std::vector<TestLayout>& recomputed_layouts() {
  static const std::vector<TestLayout> all = {
      {"one rank", 1, 1, 1, 0},
      {"data 2, zero 1", 2, 1, 1, 1},
      {"tensor 2, pipeline 2 1f1b", 1, 2, 2, 0},
      {"data 2, pipeline 2 gpipe, zero 2", 2, 1, 2, 2, ScheduleKind::gpipe},
      {"data 2, pipeline 2 interleaved, zero 3", 2, 1, 2, 3, ScheduleKind::interleaved, 2},
      {"tensor 2 with sequence shards, pipeline 2 interleaved", 1, 2, 2, 0, ScheduleKind::interleaved, 2, true},
      {"two chunks on one rank", 1, 1, 1, 0, ScheduleKind::interleaved, 2},
      {"pipeline 4 zb-h1", 1, 1, 4, 0, ScheduleKind::zb_h1},
      {"data 2, tensor 2 with sequence shards, pipeline 2 zb-h1, zero 3", 2, 2, 2, 3, ScheduleKind::zb_h1, 1, true},
  };
  return all;
}

LayoutOutcome run_recomputing(const Config& base, const TestLayout& layout, TestBackend backend, RecomputeKind kind) {
  LayoutRun run{.config = base, .backend = backend, .steps = 3, .evaluation_samples = 5};
  lay_out(run.config, layout);
  run.config.train.recompute = kind;
  run.traced = true;
  return run_layout(run);
}

std::string calls_problem(const LayoutOutcome& outcome) {
  for (std::size_t rank = 0; rank < outcome.step_traces.size(); ++rank) {
    const auto order = collective_order(outcome.plan, Rank(static_cast<std::int64_t>(rank)));
    const std::string problem = order_problem(order, outcome.step_traces[rank], 3);
    if (!problem.empty()) return "rank " + std::to_string(rank) + ": " + problem;
  }
  return {};
}

void check_recomputing_on(const Config& base, const TestLayout& layout, TestBackend at_once, TestBackend late) {
  CAPTURE(layout.name);
  const LayoutOutcome none = run_recomputing(base, layout, at_once, RecomputeKind::none);
  for (const RecomputeKind kind : {RecomputeKind::selective, RecomputeKind::full}) {
    CAPTURE(to_text(kind));
    const LayoutOutcome found = run_recomputing(base, layout, late, kind);
    check_same_bits(found, none);
    CHECK(calls_problem(found) == "");
  }
}

}  // namespace

TEST_CASE("recomputation_changes_no_bit_and_makes_the_planned_calls_on_late_streams_beyond_the_hosts_reach") {
  for (const TestLayout& layout : recomputed_layouts())
    check_recomputing_on(recomputed_config(false), layout, TestBackend::cpu, TestBackend::fenced_cpu);
}

TEST_CASE("recomputation_changes_no_bit_in_bf16") {
  for (const TestLayout& layout : recomputed_layouts())
    check_recomputing_on(recomputed_config(true), layout, TestBackend::cpu_bf16, TestBackend::late_cpu_bf16);
}

TEST_CASE("recomputation_of_sharded_weights_in_bf16_changes_no_bit_and_makes_the_planned_calls") {
  check_recomputing_on(recomputed_config(true), recomputed_layouts().back(), TestBackend::cpu_bf16,
                       TestBackend::late_cpu_bf16);
}
