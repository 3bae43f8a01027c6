// Trains a tiny model on any layout, ranks as threads of this process, and brings back what must not depend on the
// layout: losses, gradient norms, the first step's gradients and the last parameters as whole tensors. Everything but
// launch, files and checkpoints is what a real run executes.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/numbers/philox.h"
#include "config/phases.h"
#include "data/batch.h"
#include "data/order/history.h"
#include "nn/init.h"
#include "optim/lr_schedule.h"
#include "plan/communication/step_calls.h"
#include "plan/run_plan.h"
#include "store/staged_communicator.h"
#include "support/philox_below.h"
#include "support/ranks/fenced_backend.h"
#include "support/ranks/late_backend.h"
#include "support/ranks/ranks.h"
#include "train/step/step_runner.h"

namespace scaletrain {

// Samples by number, without files: ids and targets from a counter-based generator. Of every eight samples one is
// wholly masked, two are masked but for their first half, one but for a single token: micro-batches and replicas have
// unequal numbers of targets, and some have none.
inline void synthetic_sample(std::int64_t sample, std::int64_t vocab, std::span<std::int32_t> inputs,
                             std::span<std::int32_t> targets) {
  const auto length = static_cast<std::int64_t>(inputs.size());
  const std::uint64_t kind = philox_below(philox_key(17, "mask"), static_cast<std::uint64_t>(sample), 8);
  const std::int64_t unmasked = kind == 0 ? 0 : kind <= 2 ? length / 2 : kind == 3 ? 1 : length;
  for (std::int64_t i = 0; i < length; ++i) {
    const auto counter = static_cast<std::uint64_t>(sample * length + i);
    const auto classes = static_cast<std::uint64_t>(vocab);
    inputs[static_cast<std::size_t>(i)] =
        static_cast<std::int32_t>(philox_below(philox_key(17, "input"), counter, classes));
    targets[static_cast<std::size_t>(i)] =
        i < unmasked ? static_cast<std::int32_t>(philox_below(philox_key(17, "target"), counter, classes)) : -1;
  }
}

// Where its documents begin, as TrainingData::read_sample() says it: of every four samples one is a single
// document. Read where attention stays within documents.
inline std::vector<std::int32_t> synthetic_starts(std::int64_t sample, std::int64_t length) {
  std::vector<std::int32_t> starts = {0};
  if (sample % 4 == 3) return starts;
  for (std::int64_t i = 1; i < length; ++i)
    if (philox_below(philox_key(17, "document"), static_cast<std::uint64_t>(sample * length + i), 4) == 0)
      starts.push_back(static_cast<std::int32_t>(i));
  return starts;
}

enum class Masks { uneven, none };  // none: every target counts

// A replica's micro-batches of a list of samples, dealt out as training does. Samples below zero are empty (masked).
class SyntheticSource final : public MicroBatchSource {
 public:
  SyntheticSource(const PhasePlan& plan, Rank rank, Masks masks = Masks::uneven)
      : plan_(plan), replica_(plan.mesh.position_of(rank).data), masks_(masks) {}

  void set_batch(std::vector<std::int64_t> samples) { batch_ = std::move(samples); }
  const std::vector<std::int64_t>& batch() const { return batch_; }
  // Samples [first, first + global batch).
  void set_step(std::int64_t step) { set_step(step, plan_.global_batch); }
  // The first of those, of a step that has so many.
  void set_step(std::int64_t step, std::int64_t samples) {
    batch_.resize(static_cast<std::size_t>(samples));
    std::iota(batch_.begin(), batch_.end(), step * plan_.global_batch);
  }

  Filled fill(MicroBatch micro_batch, const BatchTensors& tensors) override {
    const auto samples = micro_batch_samples(batch_, plan_.mesh.degree(Axis::data), replica_, plan_.micro_batch.samples,
                                             micro_batch.value());
    const std::int64_t vocab = plan_.model.vocab;
    const bool masked = masks_ == Masks::uneven;
    const SampleReader read = [vocab, masked](std::int64_t sample, std::span<std::int32_t> inputs,
                                              std::span<std::int32_t> targets, std::vector<std::int32_t>& starts) {
      synthetic_sample(std::max<std::int64_t>(sample, 0), vocab, inputs, targets);
      if (!masked) std::rotate_copy(inputs.begin(), inputs.begin() + 1, inputs.end(), targets.begin());
      if (sample < 0) std::fill(targets.begin(), targets.end(), -1);
      starts = synthetic_starts(std::max<std::int64_t>(sample, 0), static_cast<std::int64_t>(inputs.size()));
    };
    const auto rows = static_cast<std::int64_t>(tensors.positions.size());
    return {fill_batch(samples, rows / plan_.micro_batch.samples, read, tensors)};
  }

 private:
  const PhasePlan& plan_;
  std::int64_t replica_;
  Masks masks_;
  std::vector<std::int64_t> batch_;
};

// cpu: one thread a rank; late: the same behind late streams (late_backend.h), on_demand: that run nothing before it is
// waited for; fenced: late, and with memory that the host cannot touch (fenced_backend.h).
enum class TestBackend {
  reference_f64,
  reference_f32,
  cpu,
  late_cpu,
  on_demand_cpu,
  fenced_cpu,
  cpu_bf16,
  late_cpu_bf16,
  on_demand_cpu_bf16,
  fenced_cpu_bf16,
  cpu_f16,
  late_cpu_f16,
  fenced_cpu_f16
};

inline bool is_fenced(TestBackend kind) {
  return kind == TestBackend::fenced_cpu || kind == TestBackend::fenced_cpu_bf16 || kind == TestBackend::fenced_cpu_f16;
}

inline DType compute_type_of(TestBackend kind) {
  switch (kind) {
    case TestBackend::reference_f64:
      return DType::f64;
    case TestBackend::cpu_bf16:
    case TestBackend::late_cpu_bf16:
    case TestBackend::on_demand_cpu_bf16:
    case TestBackend::fenced_cpu_bf16:
      return DType::bf16;
    case TestBackend::cpu_f16:
    case TestBackend::late_cpu_f16:
    case TestBackend::fenced_cpu_f16:
      return DType::f16;
    default:
      return DType::f32;
  }
}

inline std::unique_ptr<Backend> make_test_backend(TestBackend kind) {
  const DType compute = compute_type_of(kind);
  if (kind == TestBackend::reference_f64 || kind == TestBackend::reference_f32) return make_reference_backend(compute);
  auto backend = make_cpu_backend({.threads = 1, .instruction_set = "auto", .compute = compute});
  if (kind == TestBackend::late_cpu || kind == TestBackend::late_cpu_bf16 || kind == TestBackend::late_cpu_f16)
    return std::make_unique<LateBackend>(std::move(backend));
  if (kind == TestBackend::on_demand_cpu || kind == TestBackend::on_demand_cpu_bf16)
    return std::make_unique<LateBackend>(std::move(backend), Lateness::on_demand);
  if (is_fenced(kind)) return std::make_unique<LateBackend>(std::make_unique<FencedBackend>(std::move(backend)));
  return backend;
}

// One rank of a plan: its parts, built as a worker builds them. The plan and the groups must outlive it.
class RankTrainer {
 public:
  RankTrainer(const Config& config, const PhasePlan& plan, Rank rank, const RankGroups& groups, TestBackend kind,
              Masks masks = Masks::uneven)
      : RankTrainer(config, plan, rank, groups, make_test_backend(kind), masks) {}
  RankTrainer(const Config& config, const PhasePlan& plan, Rank rank, const RankGroups& groups,
              std::unique_ptr<Backend> backend, Masks masks = Masks::uneven)
      : config_(config),
        plan_(plan),
        backend_(std::move(backend)),
        stream_(backend_->make_stream()),
        model_(plan.transformer(rank)),
        layout_(plan.layout(rank)),
        store_(*backend_, plan.table, layout_, store_options(groups)),
        memory_(*backend_, plan.activations(rank), plan.shorter_arena_bytes(rank)),
        optimizer_(make_optimizer(config.train.optimizer)),
        runner_({.plan = plan,
                 .rank = rank,
                 .backend = *backend_,
                 .stream = *stream_,
                 .model = model_,
                 .store = store_,
                 .optimizer = *optimizer_,
                 .memory = memory_,
                 .groups = groups,
                 .work = &progress_}),
        source_(plan, rank, masks),
        abort_on_exception_(groups) {
    backend_->prepare(*stream_);
    load();
  }

  // The next optimizer step, on the samples that follow.
  StepRunner::Result step(const StepRunner::BeforeUpdate& before_update = {}) {
    const TrainingPhase phase = phase_of_step(config_, step_);
    source_.set_step(step_++, phase.global_batch);
    const OptimizerConfig& optimizer = config_.train.optimizer;
    const StepRunner::Result result = make_step(
        {.learning_rate = learning_rate(config_.train.lr_schedule, optimizer.learning_rate, step_, plan_.num_steps),
         .clip_norm = config_.train.clip_norm,
         .beta1 = optimizer.beta1,
         .beta2 = optimizer.beta2,
         .slow = slow_mean_at(optimizer, updates_ + 1, optimizer.slow_warmup.value_or(plan_.num_steps)),
         .update = updates_ + 1,
         .loss_scale = config_.precision.loss_scale.value_or(1.0)},
        phase.context, before_update);
    if (result.outcome.skip == SkipReason::none) ++updates_;
    return result;
  }

  // As if `steps` had been made: after the store was loaded from a checkpoint of that step.
  void continue_at(std::int64_t steps) { step_ = updates_ = steps; }

  // Of the samples [0, num_samples), filled up with empty ones.
  StepRunner::EvaluationSums evaluate(std::int64_t num_samples, const std::function<bool()>& wants_to_stop = {}) {
    const std::int64_t per_round = plan_.micro_batch.samples * plan_.mesh.degree(Axis::data);
    const std::int64_t rounds = std::max<std::int64_t>(1, (num_samples + per_round - 1) / per_round);
    std::vector<std::int64_t> samples(static_cast<std::size_t>(rounds * per_round), -1);
    std::iota(samples.begin(), samples.begin() + num_samples, 0);
    source_.set_batch(std::move(samples));
    return runner_.evaluate(source_, rounds, wants_to_stop);
  }

  // The initial weights anew, as a rank that goes back to a checkpoint reads its weights.
  void load() {
    store_.settle(*stream_);
    initialise_parameters(store_, *stream_, config_.run.seed, 1);
  }

  void work(const RankWork& work) {
    if (work.kind == RankWork::Kind::step) {
      step();
      return;
    }
    if (work.kind == RankWork::Kind::load) return load();
    const std::int64_t samples = work.evaluated * plan_.micro_batch.samples * plan_.mesh.degree(Axis::data);
    const auto goes_on = work.may_be_given_up ? [] { return false; } : std::function<bool()>();
    if (work.kind == RankWork::Kind::evaluation) {
      evaluate(samples, goes_on);
      return;
    }
    std::vector<std::int64_t> all(static_cast<std::size_t>(samples));
    std::iota(all.begin(), all.end(), 0);
    source_.set_batch(std::move(all));
    std::vector<double> losses(static_cast<std::size_t>(samples));
    CHECK(runner_.evaluate_samples(source_, work.evaluated, losses, goes_on));
  }

  // Nothing is under way afterwards: the store may be looked at.
  ParamStore& settled_store() {
    store_.settle(*stream_);
    return store_;
  }
  const PhasePlan& plan() const { return plan_; }
  StepRunner& runner() { return runner_; }
  SyntheticSource& source() { return source_; }
  StageMemory& memory() { return memory_; }
  Stream& stream() { return *stream_; }
  Backend& backend() { return *backend_; }
  std::uint64_t progress() const { return progress_.load(); }

 private:
  // In halves where the plan measures the gradient's noise.
  StepRunner::Result make_step(const StepSettings& settings, std::int64_t context,
                               const StepRunner::BeforeUpdate& before_update) {
    const auto& samples = source_.batch();
    const auto count = static_cast<std::int64_t>(samples.size());
    if (!measures_noise(plan_.gradient_noise, step_, count))
      return runner_.step(source_, settings, {}, before_update, plan_.micro_batches_of(count), context);
    const std::array<std::int64_t, 2> counts = halves_of(count);
    SyntheticSource first = source_;
    SyntheticSource second = source_;
    first.set_batch({samples.begin(), samples.begin() + counts[0]});
    second.set_batch({samples.begin() + counts[0], samples.end()});
    return runner_.step_in_halves({{{first, counts[0]}, {second, counts[1]}}}, settings, {}, before_update);
  }

  ParamStore::Options store_options(const RankGroups& groups) const {
    ParamStore::Options options = plan_.store_options(backend_->compute_type());
    options.groups = &groups;
    options.longest_staged = 512;  // so that even a tiny model's state passes in several pieces
    return options;
  }

  const Config& config_;
  const PhasePlan& plan_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
  Transformer model_;
  ShardLayout layout_;
  ParamStore store_;
  StageMemory memory_;
  std::unique_ptr<Optimizer> optimizer_;
  std::atomic<std::uint64_t> progress_{0};
  StepRunner runner_;
  SyntheticSource source_;
  std::int64_t step_ = 0;
  std::int64_t updates_ = 0;
  AbortOnException abort_on_exception_;  // last: destroyed before what waits for transfers
};

using GlobalTensors = std::map<std::string, std::vector<double>>;  // by row name, row-major

// Puts what the ranks hold together to whole tensors. Ranks that hold the same element (replicas, tensor ranks of a
// replicated row, a tied copy on another stage) must agree to the bit.
class TensorAssembler {
 public:
  // Frozen ones have values and nothing else.
  explicit TensorAssembler(const ParamTable& table, StateKind kind = StateKind::master) {
    for (const Parameter& parameter : table.parameters())
      if (!parameter.tied_to && (kind == StateKind::master || parameter.role == ParamRole::trained))
        tensors_[parameter.name].assign(static_cast<std::size_t>(parameter.shape.num_elements()),
                                        std::numeric_limits<double>::quiet_NaN());
  }

  // May be called by several threads at once.
  void add(const ParamStore& store, StateKind kind, std::size_t state = 0) {
    const std::lock_guard lock(mutex_);
    for (const ParamRange& range : store.held(kind)) {
      const Parameter& parameter = store.table().parameters()[static_cast<std::size_t>(range.parameter)];
      const std::vector<double> values = values_of(store.backend(), store.values(kind, range, state));
      std::size_t next = 0;
      for (const Box& box : boxes_of_range(store.layout().find(range.parameter)->box, range.first, range.count))
        place(parameter, box, values, next);
    }
  }

  // Empty if some rank has every element and all ranks of its replication group agree; else what is wrong.
  std::string problem() const {
    if (!problem_.empty()) return problem_;
    for (const auto& [name, values] : tensors_) {
      const auto missing = std::find_if(values.begin(), values.end(), [](double value) { return std::isnan(value); });
      if (missing != values.end())
        return name + ": element " + std::to_string(missing - values.begin()) + " is NaN or nobody's";
    }
    return {};
  }
  const GlobalTensors& tensors() const { return tensors_; }

 private:
  // Nobody writes them meanwhile.
  static std::vector<double> values_of(Backend& backend, const View& view) {
    std::vector<double> values(static_cast<std::size_t>(view.num_elements()));
    View held = view;
    Buffer pinned;
    if (backend.device() && view.space() == Space::device && !values.empty()) {
      pinned = backend.allocate_pinned(view.num_bytes());
      held = pinned.view(0, view.dtype(), view.shape());
      const auto stream = backend.make_stream();
      backend.copy(*stream, view, held);
      stream->synchronize();
    } else {
      held = FencedMemory::of_process().values(view);
    }
    convert_floats(held.dtype(), held.data(), DType::f64, values.data(), values.size());
    return values;
  }

  void place(const Parameter& parameter, const Box& box, const std::vector<double>& values, std::size_t& next) {
    const std::string& name = parameter.tied_to ? *parameter.tied_to : parameter.name;
    std::vector<double>& tensor = tensors_.at(name);
    const std::size_t dims = box.first.size();
    std::vector<std::int64_t> index(dims, 0);
    for (std::int64_t n = 0; n < box.num_elements(); ++n) {
      std::int64_t flat = 0;
      for (std::size_t d = 0; d < dims; ++d)
        flat = flat * parameter.shape[static_cast<int>(d)] + box.first[d] + index[d];
      double& element = tensor[static_cast<std::size_t>(flat)];
      const double value = values[next++];
      if (!std::isnan(element) && element != value && problem_.empty())
        problem_ = name + ": its replication group disagrees about element " + std::to_string(flat);
      element = value;
      for (std::size_t d = dims; d-- > 0;) {
        if (++index[d] < box.extent[d]) break;
        index[d] = 0;
      }
    }
  }

  std::mutex mutex_;
  GlobalTensors tensors_;
  std::string problem_;
};

// A run to make. Degrees, schedule, ZeRO stage, optimizer and the rest are the config's.
struct LayoutRun {
  Config config;
  TestBackend backend = TestBackend::reference_f64;
  Masks masks = Masks::uneven;
  std::int64_t steps = 1;
  std::int64_t evaluation_samples = 0;  // after the last step; 0: no evaluation
  std::vector<RankWork> further{};      // last of all; their calls alone are kept
  bool traced = false;
  bool queues_only = false;       // see RanksOptions
  std::optional<DType> frozen{};  // the type that frozen parameters are held in; nothing: the plan's
  std::int64_t gradients_of = 0;  // the step whose gradients are kept, from 0 on
  // In place of a backend of the processors: one of a GPU, of this type, for each rank; they exchange through the host.
  std::function<std::unique_ptr<Backend>(DType compute)> make_gpu{};
};

struct LayoutOutcome {
  PhasePlan plan;
  std::vector<double> losses;  // by step
  std::vector<double> grad_norms;
  std::vector<std::int64_t> target_tokens;
  // Of LayoutRun::gradients_of: the plan's loss_gradient and the config's loss scale times the sum over target tokens.
  GlobalTensors gradients;
  GlobalTensors parameters;
  StepRunner::EvaluationSums evaluation;
  std::vector<Trace> traces;  // by rank
  // Of them the steps' calls: without what makes weights in another type than their masters before the first step
  // (gathers, under ZeRO 1 and 2) and without the evaluation.
  std::vector<Trace> step_traces;
  std::vector<std::uint64_t> host_waits;  // by rank, in the last step: as host_waits.h counts
  std::string problem;                    // something that no layout may do: ranks disagree, elements are missing
};

inline PhasePlan make_test_plan(const Config& config, TestBackend backend) {
  PhasePlan plan = make_run_plan(config, config.model.vocab.value_or(257), std::nullopt).phases.front();
  plan.compute = compute_type_of(backend);
  plan.table.hold_frozen_in(plan.compute);
  if (is_fenced(backend)) plan.space = Space::device;
  return plan;
}

// Errors of ranks are thrown.
inline LayoutOutcome run_layout(const LayoutRun& run) {
  const DType compute = compute_type_of(run.backend);
  LayoutOutcome outcome;
  outcome.plan = make_test_plan(run.config, run.backend);
  if (run.make_gpu) outcome.plan.compute_on(*run.make_gpu(compute));
  if (run.frozen) outcome.plan.table.hold_frozen_in(*run.frozen);
  const PhasePlan& plan = outcome.plan;
  TensorAssembler gradients(plan.table, StateKind::gradient);
  TensorAssembler parameters(plan.table, StateKind::master);
  std::vector<std::vector<StepRunner::Result>> results(static_cast<std::size_t>(plan.mesh.world()));
  std::vector<StepRunner::EvaluationSums> evaluations(results.size());
  outcome.host_waits.resize(results.size());
  RanksOptions options;
  if (run.traced) options.traces = &outcome.traces;
  options.queues_only = run.queues_only;
  if (run.traced) outcome.step_traces.resize(results.size());
  std::vector<std::unique_ptr<Backend>> copying(results.size());  // for the communicators of a rank
  if (run.make_gpu) {
    options.mode = DirectOptions::Mode::caller;
    options.decorate = [&](Rank rank, GroupKind kind, std::unique_ptr<Communicator> group) {
      if (is_control(kind)) return group;
      std::unique_ptr<Backend>& backend = copying[static_cast<std::size_t>(rank.value())];
      if (!backend) backend = run.make_gpu(compute);
      return make_staged_communicator(std::move(group), *backend);
    };
  }
  run_ranks(
      plan.mesh, plan.group_facts(),
      [&](Rank rank, RankGroups& groups, InProcessWorld&) {
        RankTrainer trainer(run.config, plan, rank, groups,
                            run.make_gpu ? run.make_gpu(compute) : make_test_backend(run.backend), run.masks);
        const auto index = static_cast<std::size_t>(rank.value());
        const std::size_t before = run.traced ? outcome.traces[index].records.size() : 0;
        for (std::int64_t step = 0; step < run.steps; ++step) {
          const std::uint64_t waits_before = host_waits();
          results[index].push_back(trainer.step());
          outcome.host_waits[index] = host_waits() - waits_before;
          if (step == run.gradients_of) gradients.add(trainer.settled_store(), StateKind::gradient);
        }
        if (run.traced) {
          const auto& all = outcome.traces[index].records;
          outcome.step_traces[index].records.assign(all.begin() + static_cast<std::ptrdiff_t>(before), all.end());
        }
        if (run.evaluation_samples > 0) evaluations[index] = trainer.evaluate(run.evaluation_samples);
        for (const RankWork& work : run.further) trainer.work(work);
        parameters.add(trainer.settled_store(), StateKind::master);
      },
      options);
  for (std::size_t step = 0; step < static_cast<std::size_t>(run.steps); ++step) {
    const StepRunner::Result& first = results.front()[step];
    outcome.losses.push_back(first.outcome.loss);
    outcome.grad_norms.push_back(first.outcome.grad_norm);
    outcome.target_tokens.push_back(first.target_tokens);
    for (const auto& other : results)
      if (other[step].outcome.loss != first.outcome.loss || other[step].outcome.grad_norm != first.outcome.grad_norm)
        outcome.problem = "ranks disagree about step " + std::to_string(step);
  }
  outcome.evaluation = evaluations.front();
  for (const auto& other : evaluations)
    if (other.loss_sum != outcome.evaluation.loss_sum || other.target_tokens != outcome.evaluation.target_tokens)
      outcome.problem = "ranks disagree about the evaluation";
  outcome.gradients = gradients.tensors();
  outcome.parameters = parameters.tensors();
  if (!gradients.problem().empty()) outcome.problem = "gradients: " + gradients.problem();
  if (!parameters.problem().empty()) outcome.problem = "parameters: " + parameters.problem();
  return outcome;
}

// The largest ‖Δ‖ / max(‖g‖, floor · ‖all g‖) over the tensors of `expected`, and whose it is.
struct TensorDifference {
  double error = 0.0;
  std::string tensor;
};
inline TensorDifference largest_difference(const GlobalTensors& tensors, const GlobalTensors& expected,
                                           double floor = 1e-6) {
  const auto norm = [](const std::vector<double>& values) {
    return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
  };
  double all = 0.0;
  for (const auto& entry : expected) all = std::hypot(all, norm(entry.second));
  TensorDifference largest;
  for (const auto& entry : expected) {
    const auto found = tensors.find(entry.first);
    if (found == tensors.end() || found->second.size() != entry.second.size())
      return {std::numeric_limits<double>::infinity(), entry.first + " is missing"};
    std::vector<double> difference(entry.second.size());
    std::transform(entry.second.begin(), entry.second.end(), found->second.begin(), difference.begin(),
                   std::minus<double>());
    const double error = norm(difference) / std::max(norm(entry.second), floor * all);
    // A NaN is the largest of all.
    if (!(error <= largest.error)) largest = {error, entry.first};
  }
  return largest;
}

// The largest |a - b| / |b|.
inline double largest_relative(const std::vector<double>& values, const std::vector<double>& expected) {
  if (values.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double largest = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double error = std::abs(values[i] - expected[i]) / std::abs(expected[i]);
    if (!(error <= largest)) largest = error;
  }
  return largest;
}

// What changes no bit of a layout.
inline void check_same_bits(const LayoutOutcome& found, const LayoutOutcome& expected) {
  CHECK(found.problem == "");
  CHECK(found.losses == expected.losses);
  CHECK(found.grad_norms == expected.grad_norms);
  CHECK(found.gradients == expected.gradients);
  CHECK(found.parameters == expected.parameters);
  CHECK(found.evaluation.loss_sum == expected.evaluation.loss_sum);
}

// Steps of several ranks are those of one: the same samples, and losses, norms and gradients of the first step that
// differ by the order of sums in f64 alone.
inline void check_like_one_rank(const LayoutOutcome& many, const LayoutOutcome& one) {
  CHECK(many.problem == "");
  CHECK(many.target_tokens == one.target_tokens);
  CHECK(largest_relative(many.losses, one.losses) <= 1e-12);
  CHECK(largest_relative(many.grad_norms, one.grad_norms) <= 1e-10);
  const TensorDifference difference = largest_difference(many.gradients, one.gradients);
  CAPTURE(difference.tensor);
  CHECK(difference.error <= 1e-9);
}

}  // namespace scaletrain
