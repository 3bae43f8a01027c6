// The executor on the reference backend in double precision.
#include "train/step/stage_executor.h"
#include "support/philox_below.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/numbers/philox.h"
#include "data/batch.h"
#include "nn/init.h"
#include "plan/run_plan.h"
#include "support/models/tiny_model.h"
#include "support/near.h"
#include "support/ranks/host_stream.h"
#include "unit/train/train_helpers.h"

using namespace scaletrain;

namespace {

constexpr std::int64_t batch_samples = 8;
constexpr std::int64_t context = 6;
constexpr double loss_gradient = 1.0 / 48;

// The same eight samples whatever the micro-batch; sample s has s masked targets at its end (all but one of the last).
class FixedSource final : public MicroBatchSource {
 public:
  explicit FixedSource(std::int64_t micro_batch) : micro_batch_(micro_batch) {}

  Filled fill(MicroBatch micro_batch, const BatchTensors& tensors) override {
    std::vector<std::int64_t> samples(static_cast<std::size_t>(micro_batch_));
    std::iota(samples.begin(), samples.end(), micro_batch.value() * micro_batch_);
    const SampleReader read = [](std::int64_t sample, std::span<std::int32_t> inputs, std::span<std::int32_t> targets,
                                 std::vector<std::int32_t>& starts) {
      for (std::int64_t i = 0; i < context; ++i) {
        const auto counter = static_cast<std::uint64_t>(sample * context + i);
        inputs[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(philox_below(philox_key(1, "in"), counter, 11));
        const bool is_masked = i >= std::max<std::int64_t>(1, context - sample);
        targets[static_cast<std::size_t>(i)] =
            is_masked ? -1 : static_cast<std::int32_t>(philox_below(philox_key(1, "out"), counter, 11));
      }
      starts = {0};
    };
    return {fill_batch(samples, context, read, tensors)};
  }

 private:
  std::int64_t micro_batch_;
};

Config executor_config(std::int64_t micro_batch, bool tied) {
  Config config = tiny_config({.layers = 2,
                               .hidden = 8,
                               .heads = 2,
                               .kv_heads = 1,
                               .ffn_hidden = 12,
                               .context = context,
                               .vocab = 11,
                               .std = 0.3});
  config.model.tie_embeddings = tied;
  config.train.steps = 1;
  config.train.global_batch = batch_samples;
  config.train.micro_batch = micro_batch;
  return config;
}

using UnitLists = std::vector<std::vector<int>>;  // by chunk

struct Outcome {
  ExecutionResult result;
  std::map<std::string, std::vector<double>> gradients;
  std::uint64_t progress = 0;
};

// An executor with all that it works with. By the given steps and units, or the plan's where there are none.
struct ExecutorFixture {
  ExecutorFixture(std::int64_t micro_batch, bool tied, const std::vector<ScheduleStep>& given = {},
                  const UnitLists& chunks = {})
      : run(make_run_plan(executor_config(micro_batch, tied), 11, std::nullopt)),
        steps(given.empty() ? phase.schedule(Rank(0)) : given),
        memory(*backend, make_activation_plan(model, chunks.empty() ? UnitLists{phase.units_of_stage(0)} : chunks,
                                              phase.micro_batch, DType::f64, schedule_depth(steps))),
        source(micro_batch) {
    initialise_parameters(store, host_stream(), 3, 1);
  }
  ExecutorFixture(const ExecutorFixture&) = delete;
  ExecutorFixture& operator=(const ExecutorFixture&) = delete;

  RunPlan run;
  const PhasePlan& phase = run.phases.front();
  std::unique_ptr<Backend> backend = make_reference_backend(DType::f64);
  std::unique_ptr<Stream> stream = backend->make_stream();
  ShardLayout layout = phase.layout(Rank(0));
  ParamStore store{*backend, phase.table, layout, {.state_names = {}, .gradients = true, .dtype = DType::f64}};
  Transformer model{phase.model};
  std::vector<ScheduleStep> steps;
  StageMemory memory;
  std::atomic<std::uint64_t> progress{0};
  StageExecutor executor{
      {.backend = *backend, .stream = *stream, .model = model, .store = store, .memory = memory, .work = &progress}};
  FixedSource source;
};

// One step's forward and backward over the fixed batch.
Outcome execute(std::int64_t micro_batch, bool tied, const std::vector<ScheduleStep>& given = {},
                const UnitLists& chunks = {}) {
  ExecutorFixture f(micro_batch, tied, given, chunks);
  Outcome outcome;
  f.executor.train(f.executor.order_of(f.steps), f.source, loss_gradient);
  outcome.result = f.executor.sums();
  f.store.settle(*f.stream);
  outcome.progress = f.progress.load();
  for (const Parameter& parameter : f.phase.table.parameters()) {
    const View gradient = f.store.gradient(parameter.name);
    std::vector<double> values(static_cast<std::size_t>(gradient.num_elements()));
    convert_floats(gradient.dtype(), gradient.data(), DType::f64, values.data(), values.size());
    outcome.gradients[parameter.name] = std::move(values);
  }
  return outcome;
}

void check_equal(const Outcome& a, const Outcome& b, double tolerance) {
  CHECK(a.result.target_tokens == b.result.target_tokens);
  CHECK(a.result.loss_sum == Near(b.result.loss_sum).epsilon(tolerance));
  REQUIRE(a.gradients.size() == b.gradients.size());
  for (const auto& entry : a.gradients) {
    CAPTURE(entry.first);
    const std::vector<double>& other = b.gradients.at(entry.first);
    double difference = 0.0;
    double norm = 0.0;
    for (std::size_t i = 0; i < other.size(); ++i) {
      difference = std::max(difference, std::abs(entry.second[i] - other[i]));
      norm = std::max(norm, std::abs(other[i]));
    }
    // The key's bias has no effect on a softmax: its gradient is zero but for rounding.
    if (!contains(entry.first, "key.bias")) CHECK(norm > 1e-6);
    CHECK(difference <= tolerance * std::max(norm, 1e-3));
  }
}

Instruction instruction(Opcode op, std::int64_t micro_batch) {
  return {op, 0, MicroBatch(micro_batch), std::nullopt};
}

}  // namespace

TEST_CASE("one micro-batch or many of the same batch give the same loss and gradients") {
  for (const bool tied : {true, false}) {
    const Outcome whole = execute(8, tied);
    // Targets: 6 + 6-1 .. 6-5 + 1 + 1.
    CHECK(whole.result.target_tokens == 6 + 5 + 4 + 3 + 2 + 1 + 1 + 1);
    for (const std::int64_t micro_batch : {4, 2, 1}) check_equal(execute(micro_batch, tied), whole, 1e-12);
  }
}

TEST_CASE("a split backward equals the plain one, whenever the weight parts come") {
  const Outcome plain = execute(4, true);
  const auto f = [](std::int64_t m) { return instruction(Opcode::forward, m); };
  const auto i = [](std::int64_t m) { return instruction(Opcode::backward_input, m); };
  const auto w = [](std::int64_t m) { return instruction(Opcode::backward_weight, m); };
  check_equal(execute(4, true, {{f(0)}, {i(0)}, {w(0)}, {f(1)}, {i(1)}, {w(1)}}), plain, 1e-12);
  // Both weight parts at the end, in the other order; the second forward while the first weight part waits.
  check_equal(execute(4, true, {{f(0), i(0), f(1), i(1), w(1), w(0)}}), plain, 1e-12);
  check_equal(execute(4, false, {{f(0), f(1), i(1), i(0), w(0), w(1)}}), execute(4, false), 1e-12);
  // Plain and split mixed.
  check_equal(execute(4, true, {{f(0), f(1)}, {i(0)}, {instruction(Opcode::backward, 1)}, {w(0)}}), plain, 1e-12);
}

TEST_CASE("every schedule kind of one stage gives the same gradients") {
  const Outcome plain = execute(2, true);
  for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::zb_h1})
    check_equal(execute(2, true, make_stage_schedule(kind, 1, 4, 1, Stage(0))), plain, 1e-12);
}

TEST_CASE("chunks of one stage hand their results to each other in place") {
  const Outcome plain = execute(2, true);
  const auto steps = [](std::int64_t chunks) {
    return make_stage_schedule(ScheduleKind::interleaved, 1, 4, chunks, Stage(0));
  };
  check_equal(execute(2, true, steps(2), {{0, 1}, {2, 3}}), plain, 1e-12);
  check_equal(execute(2, true, steps(3), {{0}, {1, 2}, {3}}), plain, 1e-12);
}

TEST_CASE("an evaluation in parts has the bits of one in a piece") {
  ExecutorFixture f(1, true);
  const auto order = [&](std::int64_t micro_batches) {
    return f.executor.order_of(make_evaluation_schedule(1, micro_batches, 1, Stage(0)));
  };
  const ExecutionResult whole = f.executor.evaluate(order(8), f.source);
  ExecutionResult parts;
  for (const auto& part : {std::pair{0, 3}, {3, 1}, {4, 4}}) {
    class Later final : public MicroBatchSource {
     public:
      Later(MicroBatchSource& all, std::int64_t begin) : all_(all), begin_(begin) {}
      Filled fill(MicroBatch micro_batch, const BatchTensors& tensors) override {
        return all_.fill(MicroBatch(begin_ + micro_batch.value()), tensors);
      }

     private:
      MicroBatchSource& all_;
      std::int64_t begin_;
    };
    Later later(f.source, part.first);
    parts = f.executor.evaluate(order(part.second), later, parts);
  }
  CHECK(parts.loss_sum == whole.loss_sum);
  CHECK(parts.target_tokens == whole.target_tokens);
  CHECK(whole.target_tokens == 6 + 5 + 4 + 3 + 2 + 1 + 1 + 1);
}

TEST_CASE("progress counts every piece of work, so that a hang shows") {
  // Two micro-batches, forward and backward of four units each; then the optimizer.
  CHECK(execute(4, true).progress == 2 * 2 * 4 + 1);
}

TEST_CASE("instructions that one stage cannot have are bugs, not silence") {
  for (const Opcode op : {Opcode::send_activation, Opcode::receive_gradient})
    CHECK_THROWS_AS(execute(4, true, {{instruction(op, 0)}}), BugError);
  CHECK_THROWS_AS(execute(4, true, {{instruction(Opcode::backward, 0)}}), BugError);  // nothing was forwarded
  CHECK_THROWS_AS(execute(4, true, {{instruction(Opcode::forward, 0)}}), BugError);   // never taken back
  Instruction other_chunk = instruction(Opcode::forward, 0);
  other_chunk.chunk = 1;
  CHECK_THROWS_AS(execute(4, true, {{other_chunk}}), BugError);
}
