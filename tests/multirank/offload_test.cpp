// Offload on whole layouts: every bit is that of the same layout without it.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "support/models/tiny_model.h"
#include "support/ranks/rank_trainer.h"
#include "support/ranks/test_layout.h"

using namespace scaletrain;

namespace {

// Clips and decays, as configs do by default.
Config offloaded_config(bool llama) {
  Config config = tiny_config();
  config.train.global_batch = 8;
  config.train.optimizer.learning_rate = 1e-3;
  if (llama) {
    make_llama(config.model);
    config.model.tie_embeddings = false;
  }
  return config;
}

// Every division of masters and state, and of what they are gathered into.
const std::vector<TestLayout>& offloaded_layouts() {
  static const std::vector<TestLayout> all = {
      {"one rank", 1, 1, 1, 0},
      {"data 2, zero 0", 2, 1, 1, 0},
      {"data 2, zero 1", 2, 1, 1, 1},
      {"data 3, zero 2", 3, 1, 1, 2},
      {"data 2, zero 3", 2, 1, 1, 3},
      {"tensor 4, sequence shards", 1, 4, 1, 0, ScheduleKind::one_f_one_b, 1, true},
      {"data 2, pipeline 2, zero 1", 2, 1, 2, 1},
      {"data 2, tensor 2, pipeline 2 zb-h1, zero 3", 2, 2, 2, 3, ScheduleKind::zb_h1},
  };
  return all;
}

// Without it at once and in the host's memory, with it where the host reaches no device and streams are late.
void check_offload(LayoutRun run, TestBackend fenced) {
  const LayoutOutcome without = run_layout(run);
  run.config.train.optimizer.offload = OffloadKind::host;
  check_same_bits(run_layout(run), without);
  run.backend = fenced;
  check_same_bits(run_layout(run), without);
}

}  // namespace

TEST_CASE("masters_and_state_on_the_host_change_no_bit_on_any_layout") {
  struct Kind {
    TestBackend at_once, fenced;
  };
  bool llama = false;
  for (const Kind& kind :
       {Kind{TestBackend::cpu, TestBackend::fenced_cpu}, Kind{TestBackend::cpu_bf16, TestBackend::fenced_cpu_bf16},
        Kind{TestBackend::cpu_f16, TestBackend::fenced_cpu_f16}}) {
    for (const TestLayout& layout : offloaded_layouts()) {
      CAPTURE(layout.name);
      CAPTURE(to_text(compute_type_of(kind.at_once)));
      LayoutRun run{.config = offloaded_config(llama), .backend = kind.at_once, .steps = 3, .evaluation_samples = 5};
      llama = !llama;
      lay_out(run.config, layout);
      if (compute_type_of(kind.at_once) == DType::f16) run.config.precision.loss_scale = 1024.0;
      check_offload(run, kind.fenced);
    }
  }
}

TEST_CASE("masters_and_state_on_the_host_change_no_bit_of_plain_sgd") {
  LayoutRun run{.config = offloaded_config(false), .backend = TestBackend::cpu, .steps = 3};
  use_sgd(run.config);
  lay_out(run.config, {"", 2, 1, 1, 1});
  check_offload(run, TestBackend::fenced_cpu);
}

TEST_CASE("a_step_skipped_for_an_overflow_leaves_masters_and_state_on_the_host_as_they_were") {
  Config config = offloaded_config(false);
  config.precision.compute = Precision::fp16;
  config.precision.loss_scale = 1e30;
  config.train.optimizer.offload = OffloadKind::host;
  lay_out(config, {"", 2, 1, 1, 1});
  const PhasePlan plan = make_test_plan(config, TestBackend::fenced_cpu_f16);
  TensorAssembler before(plan.table);
  TensorAssembler after(plan.table);
  run_ranks(plan.mesh, plan.group_facts(), [&](Rank rank, RankGroups& groups, InProcessWorld&) {
    RankTrainer trainer(config, plan, rank, groups, TestBackend::fenced_cpu_f16);
    before.add(trainer.settled_store(), StateKind::master);
    if (trainer.step().outcome.skip == SkipReason::none) throw BugError("no overflow");
    after.add(trainer.settled_store(), StateKind::master);
    const ParamStore& store = trainer.settled_store();
    for (const ParamRange& range : store.held(StateKind::optimizer)) {
      const View moments = store.values(StateKind::optimizer, range, 1);
      for (std::int64_t i = 0; i < range.count; ++i)
        if (moments.as<float>()[i] != 0.0F) throw BugError("a moment of a skipped step");
    }
  });
  CHECK(before.problem() == "");
  CHECK(after.tensors() == before.tensors());
}
