// The traffic and the order of calls that a plan foretells are what its ranks ask of their communicators, to the
// element and call by call.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "support/models/tiny_model.h"
#include "support/ranks/rank_trainer.h"
#include "support/ranks/test_layout.h"
#include "support/sanitized_by_day.h"
#include "traffic.h"

using namespace scaletrain;

namespace {

// With a position table and biases, so that every kind of parameter is there.
Config traced_config() {
  Config config = tiny_config();
  config.run.seed = 5;
  config.train.steps = 2;
  return config;
}

void check_calls(const std::string& name, const Config& config, TestBackend backend = TestBackend::reference_f32) {
  // Under sanitizers every third: what is called is the same there, and other tests have these layouts' memory.
  static std::size_t number = 0;
  if (is_sanitized_by_day() && number++ % 3 != 0) return;
  using Kind = RankWork::Kind;
  LayoutRun run{.config = config};
  run.backend = backend;
  run.traced = true;
  // The second of more micro-batches than a part has without a pipeline. Loads behind each of the others, so that they
  // find whatever one leaves gathered.
  run.further = {{.kind = Kind::evaluation, .evaluated = 3},
                 {},
                 {.kind = Kind::evaluation, .evaluated = 9, .may_be_given_up = true},
                 {},
                 {.kind = Kind::load},
                 {.kind = Kind::evaluation, .evaluated = 3},
                 {.kind = Kind::load},
                 {},
                 {.kind = Kind::evaluation_by_sample, .evaluated = 3},
                 {.kind = Kind::load},
                 {.kind = Kind::evaluation_by_sample, .evaluated = 9, .may_be_given_up = true},
                 {}};
  const LayoutOutcome outcome = run_layout(run);
  CHECK(outcome.problem.empty());
  std::vector<RankWork> work = {{.kind = Kind::load}, {}};
  work.insert(work.end(), run.further.begin(), run.further.end());
  std::int64_t step = 0;
  for (RankWork& part : work)
    if (part.kind == Kind::step)
      part.in_halves = measures_noise(config.log.gradient_noise, ++step, config.train.global_batch);
  for (std::size_t index = 0; index < outcome.traces.size(); ++index) {
    const Rank rank(static_cast<std::int64_t>(index));
    const Trace& step = outcome.step_traces[index];
    const std::string expected = text(planned_traffic(outcome.plan, rank));
    const std::string found = text(traced_traffic(step, 0, step.records.size()));
    CHECK_MESSAGE(expected == found, name << ", rank " << index);
    CHECK_MESSAGE(order_problem(collective_order(outcome.plan, rank), step, 1) == "", name << ", rank " << index);
    const auto order = collective_order(outcome.plan, rank, work);
    CHECK_MESSAGE(order_problem(order, outcome.traces[index], 1) == "",
                  name << ", rank " << index << ", with evaluations and loads between steps");
  }
}

Config laid_out(std::int64_t data, std::int64_t tensor, std::int64_t pipeline, std::int64_t zero) {
  Config config = traced_config();
  lay_out(config, {"", data, tensor, pipeline, zero});
  return config;
}

}  // namespace

TEST_CASE("calls of every ZeRO stage are as planned and in the planned order, with and without a pipeline") {
  for (std::int64_t zero = 0; zero <= 3; ++zero) {
    check_calls("data 3, zero " + std::to_string(zero), laid_out(3, 1, 1, zero));
    check_calls("data 2, pipeline 2, zero " + std::to_string(zero), laid_out(2, 1, 2, zero));
    Config untied = laid_out(2, 2, 1, zero);
    untied.model.tie_embeddings = false;
    untied.model.bias = false;
    check_calls("data 2, tensor 2, untied, zero " + std::to_string(zero), untied);
  }
  for (std::int64_t zero = 1; zero <= 3; ++zero) {
    for (const std::int64_t pipeline : {1, 2}) {
      Config groups = laid_out(4, 1, pipeline, zero);
      groups.parallel.zero_group = 2;
      check_calls("data 4 in pairs, pipeline " + std::to_string(pipeline) + ", zero " + std::to_string(zero), groups);
    }
  }
  Config by_step = laid_out(2, 1, 2, 3);
  by_step.parallel.zero_reduce = ZeroReduceKind::step;
  check_calls("data 2, pipeline 2, zero 3, gradients by the step", by_step);
}

TEST_CASE(
    "calls of tensor groups are as planned and in the planned order, with sequence shards and with fewer key/value "
    "heads than ranks") {
  for (const bool sequence : {false, true}) {
    for (const std::int64_t tensor : {2, 4}) {
      Config config = laid_out(1, tensor, 1, 1);
      config.parallel.sequence = sequence;
      check_calls("tensor " + std::to_string(tensor), config);
      config.parallel.data = 2;
      config.parallel.zero = 2;
      check_calls("data 2, zero 2, tensor " + std::to_string(tensor), config);
    }
  }
}

TEST_CASE(
    "calls of every schedule are as planned and in the planned order, with sequence shards and weights gathered for "
    "each use") {
  for (const ScheduleKind kind :
       {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved, ScheduleKind::zb_h1}) {
    Config config = laid_out(2, 2, 2, 3);
    config.parallel.sequence = true;
    config.parallel.schedule = kind;
    if (kind == ScheduleKind::interleaved) config.parallel.chunks = 2;
    check_calls("schedule " + std::to_string(static_cast<int>(kind)), config);
  }
  Config short_of = laid_out(2, 1, 4, 2);  // fewer micro-batches than stages
  short_of.train.micro_batch = 3;
  check_calls("two micro-batches on four stages", short_of);
  Config chunks = laid_out(2, 1, 1, 3);
  chunks.parallel.schedule = ScheduleKind::interleaved;
  chunks.parallel.chunks = 2;
  check_calls("two chunks on one stage", chunks);
}

// Every second step; the first, which plans' volumes are of, is made whole.
TEST_CASE("calls of steps in halves are as planned and in the planned order, between evaluations and loads") {
  const auto measured = [](Config config) {
    config.log.gradient_noise = GradientNoiseConfig{.every = 2};
    return config;
  };
  for (std::int64_t zero = 0; zero <= 3; ++zero) {
    check_calls("halves, data 3, zero " + std::to_string(zero), measured(laid_out(3, 1, 1, zero)));
    check_calls("halves, data 2, tensor 2, pipeline 2, zero " + std::to_string(zero),
                measured(laid_out(2, 2, 2, zero)));
    check_calls("halves, bf16, data 2, zero " + std::to_string(zero), measured(laid_out(2, 1, 1, zero)),
                TestBackend::cpu_bf16);
  }
  Config groups = measured(laid_out(4, 1, 2, 2));
  groups.parallel.zero_group = 2;
  check_calls("halves, data 4 in pairs", groups);
  Config one_micro_batch = measured(laid_out(2, 1, 2, 3));
  one_micro_batch.train.micro_batch = 6;
  one_micro_batch.parallel.schedule = ScheduleKind::zb_h1;
  check_calls("halves, one micro-batch", one_micro_batch);
  Config chunks = measured(laid_out(1, 1, 2, 0));
  chunks.parallel.schedule = ScheduleKind::interleaved;
  chunks.parallel.chunks = 2;
  check_calls("halves, two chunks", chunks);
}

// What the walk must tell apart: the tensor group is asked once for each piece of a sample, and the losses of all
// samples are summed over the ranks in place of a set's two numbers.
TEST_CASE("calls of an evaluation by sample are other ones than those of the evaluation of a set") {
  using Kind = RankWork::Kind;
  Config config = laid_out(2, 2, 1, 0);
  config.train.micro_batch = 2;
  const PhasePlan plan = make_test_plan(config, TestBackend::reference_f32);
  const auto count = [&](Kind kind, GroupKind group) {
    std::int64_t calls = 0;
    for (const PlannedCall& call : collective_order(plan, Rank(0), std::array{RankWork{.kind = kind, .evaluated = 1}}))
      calls += call.group == group ? 1 : 0;
    return calls;
  };
  // Of the two samples' tokens one gather each, and not one for both.
  CHECK(count(Kind::evaluation_by_sample, GroupKind::tensor) == count(Kind::evaluation, GroupKind::tensor) + 1);
  CHECK(count(Kind::evaluation_by_sample, GroupKind::data) == count(Kind::evaluation, GroupKind::data));
  check_calls("data 2, tensor 2, two samples at once", config);
  config.parallel.sequence = true;
  config.parallel.pipeline = 2;
  check_calls("data 2, tensor 2 with sequence shards, pipeline 2, two samples at once", config);
}

// Where masters and compute weights are two, a load makes the latter anew, and gathers them under ZeRO 1 and 2.
TEST_CASE(
    "calls of halves are as planned and in the planned order, those of the initial weights and of a load included") {
  const auto count_gathers = [](const Config& config) {
    const PhasePlan plan = make_test_plan(config, TestBackend::cpu_bf16);
    return collective_order(plan, Rank(0), std::array{RankWork{.kind = RankWork::Kind::load}}).size();
  };
  for (std::int64_t zero = 0; zero <= 3; ++zero) {
    for (const std::int64_t pipeline : {1, 2}) {
      Config config = laid_out(2, 1, pipeline, zero);
      check_calls("bf16, zero " + std::to_string(zero), config, TestBackend::cpu_bf16);
      CHECK((count_gathers(config) > 0) == (zero == 1 || zero == 2));
      config.parallel.tensor = 2;
      check_calls("bf16, tensor 2, zero " + std::to_string(zero), config, TestBackend::cpu_bf16);
    }
    // In one type too where masters are the host's.
    Config offloaded = laid_out(2, 1, 1, zero);
    offloaded.train.optimizer.offload = OffloadKind::host;
    check_calls("offload, zero " + std::to_string(zero), offloaded, TestBackend::fenced_cpu);
  }
}

TEST_CASE("gradients between replicas in bf16 are as planned and in the planned order, and half the bytes") {
  for (std::int64_t zero = 0; zero <= 3; ++zero) {
    for (const std::int64_t pipeline : {1, 2}) {
      Config config = laid_out(2, 2, pipeline, zero);
      config.parallel.sequence = true;
      const PhasePlan single = make_test_plan(config, TestBackend::reference_f32);
      config.precision.reduce = Precision::bf16;
      check_calls("reduce bf16, zero " + std::to_string(zero), config);
      const PhasePlan half = make_test_plan(config, TestBackend::reference_f32);
      const auto volumes = half.communication(Rank(0));
      const auto before = single.communication(Rank(0));
      REQUIRE(volumes.size() == before.size());
      bool is_halved = false;
      for (std::size_t i = 0; i < volumes.size(); ++i) {
        const bool travels = volumes[i].kind == GroupKind::data && volumes[i].purpose == "gradients";
        is_halved |= travels;
        CHECK(volumes[i].elements == before[i].elements);
        CHECK((travels ? 2 : 1) * volumes[i].bytes == before[i].bytes);
      }
      CHECK(is_halved);
    }
  }
}

// The check of the orders above must see what it is there for.
TEST_CASE("a_call_at_another_place_or_to_another_peer_or_missing_is_not_the_planned_order") {
  const PhasePlan plan = make_test_plan(laid_out(2, 2, 2, 2), TestBackend::reference_f32);
  const std::vector<PlannedCall> order = collective_order(plan, Rank(0));
  Trace planned;
  for (int step = 0; step < 2; ++step)
    for (const PlannedCall& call : order) planned.records.push_back(record_of(call));
  CHECK(order_problem(order, planned, 2) == "");
  Trace shorter = planned;
  shorter.records.pop_back();
  CHECK(order_problem(order, shorter, 2) != "");
  for (std::size_t i = 0; i + 1 < order.size(); ++i) {
    if (planned.records[i] == planned.records[i + 1]) continue;
    Trace swapped = planned;
    std::swap(swapped.records[i], swapped.records[i + 1]);
    CHECK(order_problem(order, swapped, 2).find("call " + std::to_string(i) + " is") == 0);
  }
  const auto exchange = std::find_if(planned.records.begin(), planned.records.end(),
                                     [](const TraceRecord& record) { return !record.messages.empty(); });
  REQUIRE(exchange != planned.records.end());
  exchange->messages.front().peer = 0;
  CHECK(order_problem(order, planned, 2) != "");
}
