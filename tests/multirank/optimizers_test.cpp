// Every optimizer on any layout: the losses and weights of one rank, the calls that the plan foretells, and no bit that
// depends on when streams run or on where masters and state lie.
#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

#include "plan/communication/step_calls.h"
#include "support/models/optimizer_kinds.h"
#include "support/models/tiny_model.h"
#include "support/ranks/rank_trainer.h"
#include "support/ranks/test_layout.h"
#include "traffic.h"

using namespace scaletrain;

namespace {

// Sizes that nothing divides, parts frozen and parts with rates and decays of their own; it clips.
Config config_of(const NamedOptimizer& named) {
  Config config = tiny_config({.layers = 4});
  config.run.seed = 5;
  config.train.steps = 50;
  config.train.global_batch = 8;
  config.train.lr_schedule.warmup = 10;
  config.train.clip_norm = 0.5;
  config.train.optimizer = named.config;
  config.finetune.freeze = {"blocks.1.*"};
  config.finetune.learning_rates = {{"blocks.*.weight", 0.5}, {"*_norm.weight", 2.0}};
  config.finetune.weight_decays = {{"*.attention.*", 0.0}, {"*.ffn.down.*", 3.0}, {"*_norm.*", 2.0}};
  return config;
}

const std::vector<TestLayout>& few_layouts() {
  static const std::vector<TestLayout> all = {
      {"data 2, zero 0", 2, 1, 1, 0},
      {"data 3, zero 1", 3, 1, 1, 1},
      {"data 2, zero 3", 2, 1, 1, 3},
      {.name = "data 4 in pairs, zero 2", .data = 4, .tensor = 1, .pipeline = 1, .zero = 2, .zero_group = 2},
      {"tensor 4, fewer key/value heads than ranks, sequence shards", 1, 4, 1, 0, ScheduleKind::one_f_one_b, 1, true},
      {"data 2, tensor 2, pipeline 2 with two chunks, zero 2", 2, 2, 2, 2, ScheduleKind::interleaved, 2},
      {"data 2, tensor 4, zero 1", 2, 4, 1, 1},
      {.name = "data 3, zero 3, reduced once a step",
       .data = 3,
       .tensor = 1,
       .pipeline = 1,
       .zero = 3,
       .zero_reduce = ZeroReduceKind::step},
  };
  return all;
}

// A key's bias has a gradient of rounding alone, which Lion and Adam make as large as any.
GlobalTensors without_rounding_gradients(GlobalTensors tensors) {
  std::erase_if(tensors, [](const auto& entry) { return entry.first.find("key.bias") != std::string::npos; });
  return tensors;
}

}  // namespace

TEST_CASE("four_steps_of_every_optimizer_on_any_layout_are_those_of_one_rank") {
  for (const NamedOptimizer& named : optimizers_beside_adamw()) {
    CAPTURE(named.name);
    const Config base = config_of(named);
    const LayoutOutcome one = run_layout({.config = base, .steps = 4});
    REQUIRE(one.problem == "");
    CHECK(one.losses.back() != one.losses.front());
    for (const TestLayout& layout : few_layouts()) {
      CAPTURE(layout.name);
      LayoutRun run{.config = base, .steps = 4, .traced = true};
      lay_out(run.config, layout);
      const LayoutOutcome many = run_layout(run);
      CHECK(many.problem == "");
      CHECK(largest_relative(many.losses, one.losses) <= 1e-10);
      CHECK(largest_relative(many.grad_norms, one.grad_norms) <= 1e-9);
      const TensorDifference difference =
          largest_difference(many.parameters, without_rounding_gradients(one.parameters));
      CAPTURE(difference.tensor);
      CHECK(difference.error <= 1e-9);
      for (std::size_t rank = 0; rank < many.step_traces.size(); ++rank)
        CHECK(order_problem(collective_order(many.plan, Rank(static_cast<std::int64_t>(rank))), many.step_traces[rank],
                            static_cast<std::size_t>(run.steps)) == "");
    }
  }
}

// Of a model whose rows divide into blocks of 16 to 128 on every layout; norms and biases have theirs in fp32.
TEST_CASE("four_steps_with_moments_in_8_bits_on_any_layout_are_those_of_one_rank") {
  Config base = config_of({"adamw", {.weight_decay = 0.1, .state = OptimizerStateType::int8}});
  base.model.hidden = base.model.ffn_hidden = 128;
  const LayoutOutcome one = run_layout({.config = base, .steps = 4});
  REQUIRE(one.problem == "");
  std::set<std::int64_t> blocks;
  for (const Parameter& parameter : one.plan.table.parameters()) blocks.insert(parameter.state_block);
  CHECK(blocks == std::set<std::int64_t>{0, 16, 128});
  Config in_fp32 = base;
  in_fp32.train.optimizer.state = OptimizerStateType::fp32;
  CHECK(run_layout({.config = in_fp32, .steps = 4}).losses != one.losses);
  for (const TestLayout& layout : few_layouts()) {
    CAPTURE(layout.name);
    LayoutRun run{.config = base, .steps = 4, .traced = true};
    lay_out(run.config, layout);
    const LayoutOutcome many = run_layout(run);
    CHECK(many.problem == "");
    CHECK(largest_relative(many.losses, one.losses) <= 1e-10);
    CHECK(largest_relative(many.grad_norms, one.grad_norms) <= 1e-9);
    const TensorDifference difference = largest_difference(many.parameters, without_rounding_gradients(one.parameters));
    CAPTURE(difference.tensor);
    CHECK(difference.error <= 1e-9);
    for (std::size_t rank = 0; rank < many.step_traces.size(); ++rank)
      CHECK(order_problem(collective_order(many.plan, Rank(static_cast<std::int64_t>(rank))), many.step_traces[rank],
                          static_cast<std::size_t>(run.steps)) == "");
  }
  LayoutRun late{.config = base, .backend = TestBackend::cpu, .steps = 3};
  lay_out(late.config, {"", 2, 2, 1, 1});
  const LayoutOutcome at_once = run_layout(late);
  late.backend = TestBackend::fenced_cpu;
  check_same_bits(run_layout(late), at_once);
}

TEST_CASE("no_bit_of_any_optimizer_depends_on_late_streams_or_on_where_its_state_lies") {
  for (const NamedOptimizer& named : optimizers_beside_adamw()) {
    CAPTURE(named.name);
    LayoutRun run{.config = config_of(named), .backend = TestBackend::cpu, .steps = 3};
    lay_out(run.config, {"", 2, 2, 1, 1});
    const LayoutOutcome at_once = run_layout(run);
    run.backend = TestBackend::fenced_cpu;
    check_same_bits(run_layout(run), at_once);
    const OptimizerKind type = named.config.type;
    const bool needs_tensors = type == OptimizerKind::lamb || type == OptimizerKind::lars ||
                               type == OptimizerKind::muon || type == OptimizerKind::adafactor;
    if (needs_tensors) continue;  // offload is refused
    run.config.train.optimizer.offload = OffloadKind::host;
    check_same_bits(run_layout(run), at_once);
  }
}

// A step that is skipped for an overflow leaves parameters, states and averages as they were, and the next one finds
// them.
TEST_CASE("an_overflow_in_fp16_changes_nothing_of_any_optimizer") {
  for (const NamedOptimizer& named : optimizers_beside_adamw()) {
    CAPTURE(named.name);
    Config config = config_of(named);
    config.precision.compute = Precision::fp16;
    config.precision.loss_scale = 1e30;
    config.train.ema = EmaConfig{.decay = 0.5};
    lay_out(config, {"", 2, 1, 1, 1});
    const PhasePlan plan = make_test_plan(config, TestBackend::cpu_f16);
    TensorAssembler before(plan.table);
    TensorAssembler after(plan.table);
    run_ranks(plan.mesh, plan.group_facts(), [&](Rank rank, RankGroups& groups, InProcessWorld&) {
      RankTrainer trainer(config, plan, rank, groups, TestBackend::cpu_f16);
      before.add(trainer.settled_store(), StateKind::master);
      if (trainer.step().outcome.skip == SkipReason::none) throw BugError("no overflow");
      after.add(trainer.settled_store(), StateKind::master);
      const ParamStore& store = trainer.settled_store();
      for (std::size_t state = 0; state < store.options().state_names.size(); ++state) {
        for (const ParamRange& range : store.held(StateKind::optimizer)) {
          const Parameter& parameter = plan.table.parameters()[static_cast<std::size_t>(range.parameter)];
          if (!parameter.has_state(static_cast<int>(state))) continue;
          const View values = store.values(StateKind::optimizer, range, state);
          for (std::int64_t i = 0; i < range.count; ++i)
            if (values.as<float>()[i] != 0.0F) throw BugError("state of a skipped step");
        }
      }
    });
    CHECK(before.problem() == "");
    CHECK(after.tensors() == before.tensors());
  }
}
