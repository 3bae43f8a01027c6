#include "train/step_runner.h"

#include <array>
#include <cmath>

#include "base/error.h"
#include "optim/gradient_norm.h"

namespace scaletrain {

namespace {

StageExecutor::Parts executor_parts(const StepRunner::Parts& parts) {
  return {.backend = parts.backend,
          .stream = parts.stream,
          .model = parts.model,
          .store = parts.store,
          .memory = parts.memory,
          .tensor = parts.groups.tensor.get(),
          .pipeline = parts.groups.pipeline.get(),
          .progress = parts.progress};
}

// Every tensor rank of the last stage computes the whole loss; the first of them counts it.
bool counts_loss(const PhasePlan& plan, Rank rank) {
  const MeshPosition position = plan.mesh.position_of(rank);
  return position.tensor == 0 && position.pipeline + 1 == plan.mesh.degree(Axis::pipeline);
}

}  // namespace

StepRunner::StepRunner(const Parts& parts)
    : parts_(parts), executor_(executor_parts(parts)), schedule_(parts.plan.schedule(parts.rank)) {
  SCALETRAIN_CHECK(parts_.groups.world != nullptr);
}

StepRunner::Result StepRunner::step(MicroBatchSource& source, const StepSettings& settings, const Votes& votes) {
  parts_.store.zero_gradients(parts_.stream);
  Result result;
  executor_.run(schedule_, source, Phase::train, parts_.plan.loss_gradient,
                [&](const ExecutionResult& sums) { result = update(sums, settings, votes); });
  return result;
}

StepRunner::Result StepRunner::update(const ExecutionResult& sums, const StepSettings& settings, const Votes& votes) {
  const bool counts = counts_loss(parts_.plan, parts_.rank);
  // Doubles hold token counts exactly up to 2^53.
  std::array<double, 5> numbers = {gradient_sum_of_squares_share(parts_.backend, parts_.stream, parts_.store),
                                   counts ? sums.loss_sum : 0.0, counts ? static_cast<double>(sums.target_tokens) : 0.0,
                                   votes.interrupted ? 1.0 : 0.0, votes.save ? 1.0 : 0.0};
  sum_over(numbers, *parts_.groups.world);
  Result result;
  result.target_tokens = std::llround(numbers[2]);
  result.votes = {.interrupted = numbers[3] > 0.0, .save = numbers[4] > 0.0};
  result.outcome = make_step_block({.sum_of_squares = numbers[0],
                                    .loss_sum = numbers[1],
                                    .num_tokens = result.target_tokens,
                                    .micro_scale = parts_.plan.loss_gradient},
                                   settings);
  parts_.optimizer.step(parts_.backend, parts_.stream, parts_.store, result.outcome.block);
  parts_.stream.synchronize();
  return result;
}

StepRunner::EvaluationSums StepRunner::evaluate(MicroBatchSource& source, std::int64_t num_micro_batches) {
  const PhasePlan& plan = parts_.plan;
  const Stage stage(plan.mesh.position_of(parts_.rank).pipeline);
  const auto steps = make_evaluation_schedule(plan.mesh.degree(Axis::pipeline), num_micro_batches, plan.chunks, stage);
  const ExecutionResult sums = executor_.run(steps, source, Phase::evaluate, 0.0);
  const bool counts = counts_loss(plan, parts_.rank);
  std::array<double, 2> numbers = {counts ? sums.loss_sum : 0.0,
                                   counts ? static_cast<double>(sums.target_tokens) : 0.0};
  sum_over(numbers, *parts_.groups.world);
  return {.loss_sum = numbers[0], .target_tokens = std::llround(numbers[1])};
}

}  // namespace scaletrain
