// Where nothing is trained before some unit, the backward goes no further: no bit of what is trained changes, and the
// calls are the planned ones. Parameters that join move that place from step to step.
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

Config frozen_config() {
  Config config = tiny_config({.layers = 4});
  config.run.seed = 5;
  config.model.tie_embeddings = false;
  config.train.steps = 50;
  config.train.global_batch = 8;
  config.train.micro_batch = 1;
  config.train.optimizer.learning_rate = 1e-3;
  return config;
}

// Every schedule, every ZeRO stage, tensor groups with sequence shards and without. With two stages of the four layers
// the first one has nothing to train, or a part; with four chunks or stages several have nothing.
const std::vector<TestLayout>& frozen_layouts() {
  static const std::vector<TestLayout> all = {
      {"one rank", 1, 1, 1, 0},
      {"data 2, zero 2", 2, 1, 1, 2},
      {"tensor 2 with sequence shards, pipeline 2 1f1b", 1, 2, 2, 0, ScheduleKind::one_f_one_b, 1, true},
      {"data 2, pipeline 2 gpipe, zero 1", 2, 1, 2, 1, ScheduleKind::gpipe},
      {"data 2, pipeline 2 interleaved, zero 3", 2, 1, 2, 3, ScheduleKind::interleaved, 2},
      {"two chunks on one rank", 1, 1, 1, 0, ScheduleKind::interleaved, 2},
      {"pipeline 4 1f1b", 1, 1, 4, 0},
      {"data 2, tensor 2 with sequence shards, pipeline 2 zb-h1, zero 3", 2, 2, 2, 3, ScheduleKind::zb_h1, 1, true},
  };
  return all;
}

const std::vector<std::string> up_to_block_1 = {"blocks.0.*", "blocks.1.*", "embedding.*"};

LayoutRun run_on(const TestLayout& layout, TestBackend backend, std::int64_t steps) {
  LayoutRun run{.config = frozen_config(), .backend = backend, .steps = steps};
  lay_out(run.config, layout);
  run.traced = true;
  return run;
}

// As planned for steps of which the first has so many updates behind it.
std::string planned_calls_problem(const LayoutOutcome& outcome) {
  std::vector<RankWork> work(outcome.losses.size());
  for (std::size_t step = 0; step < work.size(); ++step) work[step].updates = static_cast<std::int64_t>(step);
  for (std::size_t rank = 0; rank < outcome.step_traces.size(); ++rank) {
    const auto order = collective_order(outcome.plan, Rank(static_cast<std::int64_t>(rank)), work);
    const std::string problem = order_problem(order, outcome.step_traces[rank], 1);
    if (!problem.empty()) return "rank " + std::to_string(rank) + ": " + problem;
  }
  return {};
}

// The same weights are frozen but for the position table, so that the backward goes all the way to it.
void check_stopped_on(const TestLayout& layout, TestBackend at_once, TestBackend late, RecomputeKind recompute) {
  CAPTURE(layout.name);
  CAPTURE(to_text(recompute));
  LayoutRun whole = run_on(layout, at_once, 1);
  whole.config.finetune.freeze = {"blocks.0.*", "blocks.1.*", "embedding.token.*"};
  whole.config.train.recompute = recompute;
  LayoutRun stopped = whole;
  stopped.backend = late;
  stopped.config.finetune.freeze = up_to_block_1;
  const LayoutOutcome expected = run_layout(whole);
  const LayoutOutcome found = run_layout(stopped);
  REQUIRE(expected.plan.table.first_trained_unit() == 0);
  REQUIRE(found.plan.table.first_trained_unit() == 3);
  CHECK(found.problem == "");
  CHECK(found.losses == expected.losses);
  CHECK(found.gradients.size() + 1 == expected.gradients.size());
  for (const auto& entry : found.gradients)
    CHECK_MESSAGE(entry.second == expected.gradients.at(entry.first), entry.first);
  CHECK(planned_calls_problem(found) == "");
  for (std::size_t rank = 0; rank < found.step_traces.size(); ++rank) {
    const Trace& trace = found.step_traces[rank];
    CHECK(text(traced_traffic(trace, 0, trace.records.size())) ==
          text(planned_traffic(found.plan, Rank(static_cast<std::int64_t>(rank)))));
    CHECK(trace.records.size() <= expected.step_traces[rank].records.size());
  }
}

}  // namespace

TEST_CASE("a_backward_that_stops_at_the_first_trained_layer_changes_no_bit_and_makes_the_planned_calls") {
  for (const TestLayout& layout : frozen_layouts())
    check_stopped_on(layout, TestBackend::cpu, TestBackend::fenced_cpu, RecomputeKind::none);
  check_stopped_on(frozen_layouts().back(), TestBackend::cpu, TestBackend::late_cpu, RecomputeKind::full);
  check_stopped_on(frozen_layouts()[2], TestBackend::cpu, TestBackend::late_cpu, RecomputeKind::selective);
  check_stopped_on(frozen_layouts()[4], TestBackend::cpu_bf16, TestBackend::late_cpu_bf16, RecomputeKind::full);
}

TEST_CASE("a_stage_below_the_first_trained_layer_is_sent_no_gradients") {
  LayoutRun run = run_on({"pipeline 4", 1, 1, 4, 0}, TestBackend::reference_f32, 1);
  run.config.parallel.stage_layers = std::vector<std::int64_t>{1, 1, 1, 1};
  run.config.finetune.freeze = up_to_block_1;
  const LayoutOutcome outcome = run_layout(run);
  for (std::size_t stage = 0; stage < 4; ++stage) {
    int gradients = 0;
    for (const TraceRecord& record : outcome.step_traces[stage].records)
      for (const TraceRecord::Message& message : record.messages)
        gradients += message.channel == Transfer::Channel::gradients ? 1 : 0;
    CHECK(gradients ==
          (stage < 2 ? 0 : 8));  // a micro-batch of one sample each, received by stage 2 or sent by stage 3
  }
}

// Blocks join from the last to the first, then the embedding: by then no step is like the one before.
namespace {
void check_joining(OptimizerKind optimizer) {
  CAPTURE(to_text(optimizer));
  const auto joining = [&](LayoutRun run) {
    run.config.train.optimizer.type = optimizer;
    run.config.finetune.freeze = up_to_block_1;
    run.config.finetune.unfreeze = {{.step = 1, .patterns = {"blocks.1.ffn*"}},
                                    {.step = 2, .patterns = {"blocks.0.*", "blocks.1.*"}},
                                    {.step = 4, .patterns = {"embedding.*"}}};
    return run;
  };
  const LayoutOutcome one = run_layout(joining(run_on({"one rank", 1, 1, 1, 0}, TestBackend::reference_f64, 6)));
  for (const TestLayout& layout : frozen_layouts()) {
    CAPTURE(layout.name);
    const LayoutOutcome found = run_layout(joining(run_on(layout, TestBackend::reference_f64, 6)));
    CHECK(found.problem == "");
    CHECK(largest_relative(found.losses, one.losses) <= 1e-12);
    CHECK(largest_relative(found.grad_norms, one.grad_norms) <= 1e-10);
    // A key's bias has no gradient but rounding, which Adam makes steps of.
    GlobalTensors expected = one.parameters;
    std::erase_if(expected, [](const auto& entry) { return entry.first.ends_with("attention.key.bias"); });
    CHECK(largest_difference(found.parameters, expected).error <= 1e-11);
    CHECK(planned_calls_problem(found) == "");
  }
}
}  // namespace
TEST_CASE("parameters_that_join_train_the_same_on_every_layout_with_the_planned_calls") {
  check_joining(OptimizerKind::adamw);
  check_joining(OptimizerKind::muon);
  check_joining(OptimizerKind::adafactor);
}

// Until it joins a parameter keeps its bits, decay or not, and its gradient is in no norm. On one rank, whose norm is
// summed in the order of the parameters whatever is trained.
namespace {
void check_waiting(OptimizerKind optimizer) {
  CAPTURE(to_text(optimizer));
  LayoutRun frozen = run_on({"one rank", 1, 1, 1, 0}, TestBackend::cpu, 3);
  frozen.config.train.optimizer.type = optimizer;
  frozen.config.train.optimizer.weight_decay = 0.5;
  frozen.config.finetune.freeze = {"blocks.0.*", "head.norm.*"};
  LayoutRun waiting = frozen;
  waiting.config.finetune.unfreeze = {{.step = 3, .patterns = {"blocks.0.*", "head.norm.weight"}}};
  const LayoutOutcome expected = run_layout(frozen);
  const LayoutOutcome found = run_layout(waiting);
  CHECK(found.losses == expected.losses);
  CHECK(found.grad_norms == expected.grad_norms);
  CHECK(found.parameters == expected.parameters);
  LayoutRun joined = waiting;
  joined.config.finetune.unfreeze.front().step = 2;
  const LayoutOutcome later = run_layout(joined);
  CHECK(later.losses == expected.losses);  // of the weights before each step
  CHECK(later.grad_norms[1] == expected.grad_norms[1]);
  CHECK(later.grad_norms[2] > expected.grad_norms[2]);
  CHECK(later.parameters.at("blocks.0.ffn.up.weight") != expected.parameters.at("blocks.0.ffn.up.weight"));
  CHECK(later.parameters.at("head.norm.bias") == expected.parameters.at("head.norm.bias"));
}
}  // namespace
TEST_CASE("a_parameter_that_has_not_joined_is_as_one_that_is_frozen") {
  check_waiting(OptimizerKind::adamw);
  check_waiting(OptimizerKind::muon);
  check_waiting(OptimizerKind::adafactor);
}

// In f32 they have masters that compute weights are rounded from, as what is trained has.
TEST_CASE("frozen_weights_that_are_held_in_a_half_alone_train_to_the_same_bits_as_with_masters") {
  for (const auto& [backend, half] :
       {std::pair{TestBackend::cpu_bf16, DType::bf16}, {TestBackend::fenced_cpu_f16, DType::f16}}) {
    for (const TestLayout& layout : frozen_layouts()) {
      CAPTURE(layout.name);
      LayoutRun run = run_on(layout, backend, 3);
      run.evaluation_samples = 3;
      if (half == DType::f16) run.config.precision.loss_scale = 1024;
      run.config.finetune.freeze = {"blocks.0.*", "blocks.2.ffn.down.weight", "head.weight"};
      const LayoutOutcome found = run_layout(run);
      run.frozen = DType::f32;
      const LayoutOutcome with_masters = run_layout(run);
      CHECK(found.problem == "");
      CHECK(found.losses == with_masters.losses);
      CHECK(found.grad_norms == with_masters.grad_norms);
      CHECK(found.evaluation.loss_sum == with_masters.evaluation.loss_sum);
      for (const auto& entry : found.parameters) {
        const std::string& name = entry.first;
        const bool is_frozen = found.plan.table.find(name)->role == ParamRole::frozen;
        CHECK(found.plan.table.find(name)->dtype == (is_frozen ? half : DType::f32));
        if (!is_frozen) CHECK_MESSAGE(entry.second == with_masters.parameters.at(name), name);
      }
    }
  }
}
