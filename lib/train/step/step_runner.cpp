#include "train/step/step_runner.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "plan/longest_wait.h"

namespace scaletrain {

namespace {

StageExecutor::Parts executor_parts(const StepRunner::Parts& parts, StageMemory& memory) {
  return {.backend = parts.backend,
          .stream = parts.stream,
          .model = parts.model,
          .store = parts.store,
          .memory = memory,
          .tensor = parts.groups.find(GroupKind::tensor),
          .pipeline = parts.groups.find(GroupKind::pipeline),
          .seed = parts.plan.seed,
          .work = parts.work};
}

// Every tensor rank of the last stage computes the whole loss; the first of them counts it.
bool counts_loss(const PhasePlan& plan, Rank rank) {
  const MeshPosition position = plan.mesh.position_of(rank);
  return position.tensor == 0 && position.pipeline + 1 == plan.mesh.degree(Axis::pipeline);
}

// Results of GradientSquares: of a whole step, and of its halves.
constexpr int of_step = 0;
constexpr std::array<int, 2> of_halves = {1, 2};

// The micro-batches of an evaluation part.
class PartSource final : public MicroBatchSource {
 public:
  PartSource(MicroBatchSource& all, std::int64_t first) : all_(all), first_(first) {}
  Filled fill(MicroBatch micro_batch, const BatchTensors& tensors) override {
    return all_.fill(MicroBatch(first_ + micro_batch.value()), tensors);
  }

 private:
  MicroBatchSource& all_;
  std::int64_t first_;
};

}  // namespace

StepRunner::StepRunner(const Parts& parts)
    : parts_(parts),
      squares_(parts.backend, parts.store, parts.plan.gradient_noise ? 3 : 1),
      executor_(executor_parts(parts, parts.memory)),
      average_(parts.plan.ema ? std::optional<WeightAverage>(*parts.plan.ema) : std::nullopt) {
  parts_.optimizer.prepare(parts_.backend, parts_.store);
  const PhasePlan& plan = parts.plan;
  if (plan.shorter_contexts.empty()) return;
  const ScheduleDepth depth = schedule_depth(plan.schedule(parts.rank));
  for (const std::int64_t context : plan.shorter_contexts)
    shorter_.emplace(context, std::make_unique<Shorter>(parts, plan.activations(parts.rank, depth, context)));
}

StepRunner::Shorter::Shorter(const Parts& parts, ActivationPlan plan)
    : memory(parts.memory, std::move(plan)), executor(executor_parts(parts, memory)) {}

StageExecutor& StepRunner::executor_for(std::int64_t context) {
  if (context == 0 || context == parts_.plan.micro_batch.tokens) return executor_;
  const auto found = shorter_.find(context);
  SCALETRAIN_CHECK(found != shorter_.end());
  return found->second->executor;
}

StepRunner::Result StepRunner::step(MicroBatchSource& source, const StepSettings& settings, const AskVotes& votes,
                                    const BeforeUpdate& before_update, std::int64_t micro_batches,
                                    std::int64_t context) {
  const std::int64_t updates = settings.update - 1;  // made before
  const ExecutionOrder& order = training_order(micro_batches > 0 ? micro_batches : parts_.plan.num_micro_batches,
                                               parts_.plan.table.first_trained_unit(updates));
  parts_.store.zero_gradients(parts_.stream, updates);
  Result result;
  training_executor_ = &executor_for(context);
  training_executor_->train(order, source, parts_.plan.loss_gradient * settings.loss_scale,
                            [&] { result = update(settings, votes, before_update); });
  return result;
}

StepRunner::Result StepRunner::step_in_halves(const std::array<Half, 2>& halves, const StepSettings& settings,
                                              const AskVotes& votes, const BeforeUpdate& before_update) {
  const std::int64_t updates = settings.update - 1;
  const int first_trained = parts_.plan.table.first_trained_unit(updates);
  const double scale = parts_.plan.loss_gradient * settings.loss_scale;
  const auto run = [&](const Half& half, const StageExecutor::OptimizerStep& then, StageExecutor::SumsOf sums_of) {
    const ExecutionOrder& order = training_order(parts_.plan.micro_batches_of(half.samples), first_trained);
    parts_.store.zero_gradients(parts_.stream, updates);
    training_executor_ = &executor_;
    executor_.train(order, half.source, scale, then, sums_of);
  };
  // Nobody waits for the squares before the step's own wait: the host issues the second half while the first one runs.
  std::array<HalfGradient, 2> measured;
  run(
      halves[0],
      [&] {
        squares_.issue(parts_.stream, of_halves[0]);
        parts_.store.keep_gradients(parts_.stream);
      },
      StageExecutor::SumsOf::this_part);
  measured[0].tokens = executor_.target_tokens();
  Result result;
  run(
      halves[1],
      [&] {
        squares_.issue(parts_.stream, of_halves[1]);
        parts_.store.add_kept_gradients(parts_.stream);
        result = update(settings, votes, before_update, &measured);
      },
      StageExecutor::SumsOf::further);
  if (result.outcome.skip != SkipReason::none) return result;
  result.noise = measure_noise(measured, result.outcome.grad_norm, scale, halves[0].samples + halves[1].samples);
  return result;
}

StepRunner::Result StepRunner::update(const StepSettings& settings, const AskVotes& ask,
                                      const BeforeUpdate& before_update, std::array<HalfGradient, 2>* halves) {
  const bool counts = counts_loss(parts_.plan, parts_.rank);
  squares_.issue(parts_.stream, of_step);
  parts_.optimizer.issue_sums(parts_.stream);
  // The host's one wait for its stream in a step, but for norms of directions (optim/README.md has all): from here on
  // it has the loss and the sums.
  parts_.stream.synchronize();
  const ExecutionResult sums = training_executor_->sums();
  const Votes votes = ask ? ask() : Votes();
  // Doubles hold token counts exactly up to 2^53.
  std::array<double, numbers_per_step + numbers_per_halves> numbers = {
      squares_.share(of_step), counts ? sums.loss_sum : 0.0, counts ? static_cast<double>(sums.target_tokens) : 0.0,
      votes.interrupted ? 1.0 : 0.0, votes.save ? 1.0 : 0.0};
  if (halves != nullptr) {
    numbers[numbers_per_step] = squares_.share(of_halves[0]);
    numbers[numbers_per_step + 1] = squares_.share(of_halves[1]);
    numbers[numbers_per_step + 2] = counts ? static_cast<double>(halves->front().tokens) : 0.0;
  }
  sum_over_world(parts_.groups, std::span(numbers).first(halves != nullptr ? numbers.size() : numbers_per_step));
  Result result;
  result.target_tokens = std::llround(numbers[2]);
  result.votes = {.interrupted = numbers[3] > 0.0, .save = numbers[4] > 0.0};
  if (halves != nullptr) {
    const std::int64_t first_tokens = std::llround(numbers[numbers_per_step + 2]);
    *halves = {
        HalfGradient{.sum_of_squares = numbers[numbers_per_step], .tokens = first_tokens},
        HalfGradient{.sum_of_squares = numbers[numbers_per_step + 1], .tokens = result.target_tokens - first_tokens}};
  }
  result.outcome = make_step_scalars({.sum_of_squares = numbers[0],
                                      .loss_sum = numbers[1],
                                      .num_tokens = result.target_tokens,
                                      .micro_scale = parts_.plan.loss_gradient * settings.loss_scale},
                                     settings);
  if (before_update) before_update();
  const bool averages = average_ && result.outcome.skip == SkipReason::none;
  if (averages) average_->begin(parts_.backend, parts_.stream, parts_.store, settings.update);
  parts_.optimizer.step(parts_.backend, parts_.stream, parts_.store, result.outcome.block);
  if (averages) WeightAverage::end(parts_.store);
  return result;
}

void StepRunner::swap_average(const BeforeUpdate& before_update) {
  SCALETRAIN_CHECK(average_.has_value());
  if (before_update) before_update();
  WeightAverage::swap(parts_.backend, parts_.stream, parts_.store);
}

// Kept: a batch that grows has each size for many steps, and so has a backward each length. Of all contexts: their
// plans have the same buffers.
const ExecutionOrder& StepRunner::training_order(std::int64_t num_micro_batches, int first_trained) {
  const std::pair key(num_micro_batches, first_trained);
  const auto known = training_.find(key);
  if (known != training_.end()) return known->second;
  SCALETRAIN_CHECK_LE(num_micro_batches, parts_.plan.num_micro_batches);
  const std::vector<ScheduleStep> steps = parts_.plan.schedule(parts_.rank, num_micro_batches, first_trained);
  return training_.emplace(key, executor_.order_of(steps, first_trained)).first->second;
}

// Kept: sets do not change their sizes, so that few lengths are asked for, and none longer than the longest part.
const ExecutionOrder& StepRunner::evaluation_part(std::int64_t num_micro_batches) {
  const auto known = evaluation_.find(num_micro_batches);
  if (known != evaluation_.end()) return known->second;
  const PhasePlan& plan = parts_.plan;
  const Stage stage(plan.mesh.position_of(parts_.rank).pipeline);
  const auto steps = make_evaluation_schedule(plan.mesh.degree(Axis::pipeline), num_micro_batches, plan.chunks, stage);
  return evaluation_.emplace(num_micro_batches, executor_.order_of(steps)).first->second;
}

void StepRunner::wait_for_all() {
  double nothing = 0.0;
  try {
    sum_over_world(parts_.groups, {&nothing, 1});
  } catch (const PeerError&) {  // the reason to end stands, with or without that rank
  }
}

bool StepRunner::evaluate_samples(MicroBatchSource& source, std::int64_t num_micro_batches, std::span<double> sums,
                                  const std::function<bool()>& wants_to_stop) {
  const PhasePlan& plan = parts_.plan;
  const std::int64_t samples = plan.micro_batch.samples;
  const std::int64_t replicas = plan.mesh.degree(Axis::data);
  const std::int64_t replica = plan.mesh.position_of(parts_.rank).data;
  SCALETRAIN_CHECK_EQ(std::ssize(sums), num_micro_batches * replicas * samples);
  const std::int64_t longest = std::min(longest_evaluation_part(plan), num_micro_batches);
  const std::size_t bytes = static_cast<std::size_t>(longest * samples) * sizeof(double);
  std::fill(sums.begin(), sums.end(), 0.0);
  std::vector<double> own;
  for (std::int64_t first = 0; first < num_micro_batches; first += longest) {
    if (wants_to_stop) {
      double wishes = wants_to_stop() ? 1.0 : 0.0;
      sum_over_world(parts_.groups, {&wishes, 1});
      if (wishes > 0.0) return false;
    }
    const std::int64_t count = std::min(longest, num_micro_batches - first);
    if (!sample_losses_ || sample_losses_bytes_ < bytes) {
      sample_losses_.reset();
      sample_losses_.emplace(parts_.backend, bytes);
      sample_losses_bytes_ = bytes;
    }
    PartSource part(source, first);
    own.resize(static_cast<std::size_t>(count * samples));
    executor_.evaluate_samples(evaluation_part(count), part, count, *sample_losses_, own);
    const std::span<double> of_part = sums.subspan(static_cast<std::size_t>(first * replicas * samples),
                                                   static_cast<std::size_t>(count * replicas * samples));
    if (counts_loss(plan, parts_.rank))
      for (std::int64_t k = 0; k < count; ++k)
        std::copy_n(own.begin() + k * samples, samples, of_part.begin() + (k * replicas + replica) * samples);
    // All others' numbers are zero: the sum is the numbers themselves, to the bit.
    sum_over_world(parts_.groups, of_part);
  }
  return true;
}

StepRunner::EvaluationSums StepRunner::evaluate(MicroBatchSource& source, std::int64_t num_micro_batches,
                                                const std::function<bool()>& wants_to_stop) {
  const PhasePlan& plan = parts_.plan;
  const std::int64_t longest = longest_evaluation_part(plan);
  ExecutionResult sums;
  for (std::int64_t first = 0; first < num_micro_batches; first += longest) {
    if (wants_to_stop) {
      double wishes = wants_to_stop() ? 1.0 : 0.0;
      sum_over_world(parts_.groups, {&wishes, 1});
      if (wishes > 0.0) return {.is_given_up = true};
    }
    PartSource part(source, first);
    sums = executor_.evaluate(evaluation_part(std::min(longest, num_micro_batches - first)), part, sums);
  }
  const bool counts = counts_loss(plan, parts_.rank);
  std::array<double, numbers_per_evaluation> numbers = {counts ? sums.loss_sum : 0.0,
                                                        counts ? static_cast<double>(sums.target_tokens) : 0.0};
  sum_over_world(parts_.groups, numbers);
  return {.loss_sum = numbers[0], .target_tokens = std::llround(numbers[1])};
}

}  // namespace scaletrain
