// Training in bf16 and fp16 on many layouts, against double precision on one rank.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "reduced_in_bf16.h"
#include "support/models/tiny_model.h"
#include "support/ranks/rank_trainer.h"
#include "support/ranks/test_layout.h"

using namespace scaletrain;

namespace {

struct Half {
  std::string name;
  TestBackend backend;
  double epsilon;  // half the distance between 1 and the next number: the largest error of one rounding
};

const std::vector<Half>& halves() {
  static const std::vector<Half> all = {{"bf16", TestBackend::cpu_bf16, std::ldexp(1.0, -8)},
                                        {"fp16", TestBackend::cpu_f16, std::ldexp(1.0, -11)}};
  return all;
}

Config half_config(bool llama) {
  Config config = tiny_config({.layers = 4});
  config.run.seed = 5;
  config.train.steps = 50;
  config.train.global_batch = 8;
  config.train.lr_schedule.warmup = 10;
  config.train.optimizer.learning_rate = 1e-3;
  config.parallel.zero = 0;
  if (llama) {
    make_llama(config.model);
    config.model.tie_embeddings = false;
  }
  return config;
}

const std::vector<TestLayout>& layouts() {
  static const std::vector<TestLayout> all = {
      {"one rank", 1, 1, 1, 0},
      {"data 2, zero 0", 2, 1, 1, 0},
      {"data 2, zero 1", 2, 1, 1, 1},
      {"data 2, zero 2", 2, 1, 1, 2},
      {"data 2, zero 3", 2, 1, 1, 3},
      {"tensor 2", 1, 2, 1, 0},
      {"tensor 4, sequence shards", 1, 4, 1, 0, ScheduleKind::one_f_one_b, 1, true},
      {"pipeline 2, zb-h1", 1, 1, 2, 0, ScheduleKind::zb_h1},
      {"pipeline 2, two chunks", 1, 1, 2, 0, ScheduleKind::interleaved, 2},
      {"data 2, tensor 2, pipeline 2, zero 1", 2, 2, 2, 1},
      {"data 2, tensor 2 with sequence shards, pipeline 2 zb-h1, zero 3", 2, 2, 2, 3, ScheduleKind::zb_h1, 1, true},
  };
  return all;
}

LayoutOutcome run_on(const Config& base, const TestLayout& layout, TestBackend backend, std::int64_t steps) {
  LayoutRun run{.config = base, .backend = backend, .steps = steps, .evaluation_samples = 13};
  lay_out(run.config, layout);
  return run_layout(run);
}

double norm_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

// The distance of two tensors in units of the second one's norm; of all gradients at once where one is too small to
// count: what rounding leaves of a key's bias, whose gradient is zero.
double distance(const std::vector<double>& found, const std::vector<double>& expected, double all) {
  std::vector<double> difference(found.size());
  for (std::size_t i = 0; i < found.size(); ++i) difference[i] = found[i] - expected[i];
  return norm_of(difference) / std::max(norm_of(expected), 1e-2 * all);
}

double largest_distance(const GlobalTensors& found, const GlobalTensors& expected) {
  double all = 0;
  for (const auto& [name, values] : expected) all = std::hypot(all, norm_of(values));
  double largest = 0;
  for (const auto& [name, values] : expected) largest = std::max(largest, distance(found.at(name), values, all));
  return largest;
}

}  // namespace

// A gradient passes some 60 roundings on its way through four layers and back, whose errors add up as a random walk: 8
// epsilon, and in the worst of all tensors twice that. The loss is a mean over tokens and rounds as one logit does; the
// norm sees of the gradients' error the part along them. A sum that misses a rank's part is wrong by a tenth and more.
constexpr double gradient_bound = 16;
constexpr double norm_bound = 4;
constexpr double loss_bound = 1;

TEST_CASE("half_precision_is_as_near_to_double_precision_on_every_layout_as_its_rounding_allows") {
  for (const bool llama : {false, true}) {
    const Config base = half_config(llama);
    const LayoutOutcome exact = run_on(base, layouts().front(), TestBackend::reference_f64, 5);
    for (const Half& half : halves()) {
      for (const TestLayout& layout : layouts()) {
        CAPTURE(llama);
        CAPTURE(half.name);
        CAPTURE(layout.name);
        const LayoutOutcome found = run_on(base, layout, half.backend, 5);
        CHECK(found.problem == "");
        CHECK(largest_distance(found.gradients, exact.gradients) <= gradient_bound * half.epsilon);
        CHECK(largest_relative(found.grad_norms, exact.grad_norms) <= norm_bound * half.epsilon);
        CHECK(largest_relative(found.losses, exact.losses) <= loss_bound * half.epsilon);
        CHECK(largest_relative({found.evaluation.loss_sum}, {exact.evaluation.loss_sum}) <= loss_bound * half.epsilon);
        CHECK(found.evaluation.target_tokens == exact.evaluation.target_tokens);
      }
    }
  }
}

namespace {

// Rounds the gradients that a rank has summed before each further micro-batch: what sums in a half would be.
class SumsInHalves final : public MicroBatchSource {
 public:
  SumsInHalves(SyntheticSource& source, ParamStore& store, DType half) : source_(source), store_(store), half_(half) {}

  Filled fill(MicroBatch micro_batch, const BatchTensors& tensors) override {
    for (const ParamRange& range : store_.held(StateKind::gradient)) {
      const View sums = store_.values(StateKind::gradient, range);
      std::vector<std::uint16_t> rounded(static_cast<std::size_t>(sums.num_elements()));
      convert_floats(sums.dtype(), sums.data(), half_, rounded.data(), rounded.size());
      convert_floats(half_, rounded.data(), sums.dtype(), sums.data(), rounded.size());
    }
    return source_.fill(micro_batch, tensors);
  }

 private:
  SyntheticSource& source_;
  ParamStore& store_;
  DType half_;
};

GlobalTensors first_gradients(const Config& config, TestBackend backend, bool sums_in_halves) {
  const PhasePlan plan = make_test_plan(config, backend);
  TensorAssembler gradients(plan.table);
  run_ranks(plan.mesh, plan.group_facts(), [&](Rank rank, RankGroups& groups, InProcessWorld&) {
    RankTrainer trainer(config, plan, rank, groups, backend);
    SumsInHalves rounding(trainer.source(), trainer.settled_store(), plan.compute);
    trainer.source().set_step(0);
    MicroBatchSource& source = sums_in_halves ? static_cast<MicroBatchSource&>(rounding) : trainer.source();
    trainer.runner().step(source, {.learning_rate = 1e-3, .clip_norm = {}, .update = 1});
    gradients.add(trainer.settled_store(), StateKind::gradient);
  });
  CHECK(gradients.problem() == "");
  return gradients.tensors();
}

}  // namespace

// Of 256 micro-batches or of one: rows of another number may be multiplied in another order, whose values round to the
// next half here and there. Sums in halves are rounded 256 times.
TEST_CASE("trap_gradients_of_many_micro_batches_are_added_in_fp32_where_layers_compute_in_halves") {
  for (const bool llama : {false, true}) {
    CAPTURE(llama);
    Config many = half_config(llama);
    many.train.global_batch = 256;
    Config one = many;
    one.train.micro_batch = 256;
    for (const Half& half : halves()) {
      CAPTURE(half.name);
      const GlobalTensors expected = first_gradients(one, half.backend, false);
      const double right = largest_distance(first_gradients(many, half.backend, false), expected);
      const double wrong = largest_distance(first_gradients(many, half.backend, true), expected);
      CHECK(right <= 3 * half.epsilon);
      CHECK(wrong > 2 * right);
    }
  }
}

// Most updates are smaller than half the distance of two halves near their weight: where masters were kept in halves,
// or rounded to them on their way, they would vanish.
TEST_CASE("trap_updates_that_are_too_small_for_a_half_add_up_in_the_masters") {
  Config base = half_config(false);
  use_sgd(base);
  base.train.optimizer.learning_rate = 1e-3;
  for (const TestLayout& layout : {layouts().front(), layouts().back()}) {
    CAPTURE(layout.name);
    const auto changes = [&](TestBackend backend) {
      const GlobalTensors before = run_on(base, layout, backend, 0).parameters;
      GlobalTensors moved = run_on(base, layout, backend, 20).parameters;
      for (auto& [name, values] : moved)
        for (std::size_t i = 0; i < values.size(); ++i) values[i] -= before.at(name)[i];
      return moved;
    };
    const GlobalTensors expected = changes(TestBackend::cpu);
    for (const Half& half : halves()) {
      CAPTURE(half.name);
      CHECK(largest_distance(changes(half.backend), expected) <= gradient_bound * half.epsilon);
    }
  }
}

namespace {

void check_same_bits_late(const Config& base, const TestLayout& layout, TestBackend own,
                          std::initializer_list<TestBackend> late_ones) {
  CAPTURE(layout.name);
  const LayoutOutcome at_once = run_on(base, layout, own, 3);
  CHECK(at_once.problem == "");
  for (const TestBackend backend : late_ones) {
    const LayoutOutcome late = run_on(base, layout, backend, 3);
    CHECK(late.problem == "");
    CHECK(late.losses == at_once.losses);
    CHECK(late.gradients == at_once.gradients);
    CHECK(late.parameters == at_once.parameters);
    CHECK(late.evaluation.loss_sum == at_once.evaluation.loss_sum);
  }
}

}  // namespace

TEST_CASE("streams_that_run_late_and_memory_beyond_the_hosts_reach_change_no_bit_in_halves") {
  const Config base = half_config(false);
  for (const TestLayout& layout : layouts())
    check_same_bits_late(base, layout, TestBackend::cpu_bf16,
                         {TestBackend::late_cpu_bf16, TestBackend::fenced_cpu_bf16});
  Config scaled = base;
  scaled.precision.loss_scale = 1024.0;
  check_same_bits_late(scaled, layouts().back(), TestBackend::cpu_f16,
                       {TestBackend::late_cpu_f16, TestBackend::fenced_cpu_f16});
}

// Its own yardstick where nothing is late; held to the f32 sums by what bf16 rounds, of each tensor too: each of the
// two roundings is off by epsilon at most.
TEST_CASE(
    "gradients_between_replicas_in_bf16_are_those_in_fp32_but_for_their_rounding_also_late_and_beyond_the_hosts_"
    "reach") {
  Config base = half_config(false);
  const double epsilon = halves().front().epsilon;
  for (const TestLayout& layout : layouts()) {
    if (layout.data == 1) continue;
    CAPTURE(layout.name);
    base.precision.reduce = Precision::fp32;
    const LayoutOutcome single = run_on(base, layout, TestBackend::cpu, 3);
    base.precision.reduce = Precision::bf16;
    const LayoutOutcome at_once = run_on(base, layout, TestBackend::cpu, 3);
    CHECK(at_once.problem == "");
    CHECK(at_once.gradients != single.gradients);
    CHECK(largest_distance(at_once.gradients, single.gradients) <= 2 * epsilon);
    check_rounded_once_and_as_a_sum(at_once.gradients, single.gradients);
    CHECK(largest_relative(at_once.losses, single.losses) <= 5e-3);
    for (const TestBackend backend : {TestBackend::late_cpu, TestBackend::fenced_cpu}) {
      const LayoutOutcome late = run_on(base, layout, backend, 3);
      CHECK(late.problem == "");
      CHECK(late.losses == at_once.losses);
      CHECK(late.gradients == at_once.gradients);
      CHECK(late.parameters == at_once.parameters);
    }
  }
}
