#include "train/evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/numbers/checked.h"
#include "data/batch.h"

namespace scaletrain {

namespace {

// Samples 0, 1, 2 ... of a set in micro-batches; the last may be short. Micro-batch k of a replica is number
// replica + k * replicas of the set, or empty.
class SetSource final : public MicroBatchSource {
 public:
  struct Share {
    std::int64_t num_samples = 0;
    std::int64_t micro_batch = 0;
    std::int64_t replicas = 1;
    std::int64_t replica = 0;
  };
  SetSource(const ValidationSet& set, const Share& share) : set_(set), share_(share) {}

  Filled fill(MicroBatch micro_batch, const BatchTensors& tensors) override {
    const std::int64_t first = (share_.replica + micro_batch.value() * share_.replicas) * share_.micro_batch;
    const std::int64_t count = std::clamp<std::int64_t>(share_.num_samples - first, 0, share_.micro_batch);
    std::vector<std::int64_t> samples(static_cast<std::size_t>(count));
    std::iota(samples.begin(), samples.end(), first);
    const SampleReader read = [this](std::int64_t index, std::span<std::int32_t> inputs,
                                     std::span<std::int32_t> targets, std::vector<std::int32_t>& starts) {
      set_.read_sample(index, inputs, targets, starts);
    };
    return {fill_batch(samples, set_.context(), read, tensors)};
  }

 private:
  const ValidationSet& set_;
  Share share_;
};

// The rows of a task, dealt out as the samples of a set.
class TaskSource final : public MicroBatchSource {
 public:
  TaskSource(const ChoiceTask& task, const PhasePlan& plan, Rank rank)
      : task_(task), plan_(plan), replica_(plan.mesh.position_of(rank).data) {}

  Filled fill(MicroBatch micro_batch, const BatchTensors& tensors) override {
    const std::int64_t size = plan_.micro_batch.samples;
    const std::int64_t first = (replica_ + micro_batch.value() * plan_.mesh.degree(Axis::data)) * size;
    const std::int64_t count = std::clamp<std::int64_t>(task_.num_rows() - first, 0, size);
    std::vector<std::int64_t> rows(static_cast<std::size_t>(count));
    std::iota(rows.begin(), rows.end(), first);
    const SampleReader read = [this](std::int64_t row, std::span<std::int32_t> inputs, std::span<std::int32_t> targets,
                                     std::vector<std::int32_t>&) { task_.read_row(row, inputs, targets); };
    return {fill_batch(rows, task_.context(), read, tensors)};
  }

 private:
  const ChoiceTask& task_;
  const PhasePlan& plan_;
  std::int64_t replica_;
};

std::int64_t evaluated_samples(const ValidationSet& set, std::int64_t max_samples) {
  return max_samples == 0 ? set.num_samples() : std::min(set.num_samples(), max_samples);
}

}  // namespace

std::int64_t max_evaluated(const Config& config) {
  // More than 63 bits count is more than any set holds: all of it.
  return try_mul(config.evaluate.batches, config.train.global_batch).value_or(0);
}

MeasuredOn measured_on(const ValidationSet& set, const Config& config) {
  const DocumentsConfig& documents = config.data.documents;
  const bool is_within =
      documents.attention == DocumentAttention::within ||
      (documents.attention == DocumentAttention::instructions && set.attention() == DocumentAttention::within);
  const std::uint64_t rules =
      (documents.loss_across ? 1u : 0u) + (is_within ? 2u : 0u) + (config.evaluate.ema ? 4u : 0u);
  const std::array<std::uint64_t, 3> data = {set.hash(), static_cast<std::uint64_t>(set.context()), rules};
  return {hash_bytes(std::as_bytes(std::span(data))), evaluated_samples(set, max_evaluated(config))};
}

MeasuredOn measured_on(const ChoiceTask& task, const Config& config) {
  constexpr std::uint64_t of_averages = 0x9E3779B97F4A7C15u;  // of another measure: any bits
  return {config.evaluate.ema ? task.hash() ^ of_averages : task.hash(), task.num_questions()};
}

namespace {

// What is now measured, in the state; and for people that it starts afresh.
std::optional<std::string> measure(const MeasuredOn& data, const Config& config, RunState& state) {
  const auto afresh = measure_on(data, state.early_stop);
  if (!afresh) return std::nullopt;
  return fmt::format("step {}: {}: {}{}", state.step, config.early_stop->metric, *afresh,
                     state.best_save_id ? "; its checkpoint stays pinned until another is the best" : "");
}

}  // namespace

std::optional<std::string> measure_task(const ChoiceTask& task, const Config& config, RunState& state) {
  return measure(measured_on(task, config), config, state);
}

bool has_evaluations(const Config& config) {
  return !config.data.validation.empty() || !config.evaluate.tasks.empty();
}

std::optional<std::string> measure_set(const ValidationSet& set, const Config& config, RunState& state) {
  return measure(measured_on(set, config), config, state);
}

std::optional<std::vector<SetLoss>> evaluate_sets(StepRunner& runner, const PhasePlan& plan, Rank rank,
                                                  std::span<const std::unique_ptr<ValidationSet>> sets,
                                                  std::int64_t max_samples,
                                                  const std::function<bool()>& wants_to_stop) {
  const std::int64_t micro_batch = plan.micro_batch.samples;
  const std::int64_t replicas = plan.mesh.degree(Axis::data);
  std::vector<SetLoss> losses;
  for (const auto& set : sets) {
    const std::int64_t samples = evaluated_samples(*set, max_samples);
    SetSource source(*set, {.num_samples = samples,
                            .micro_batch = micro_batch,
                            .replicas = replicas,
                            .replica = plan.mesh.position_of(rank).data});
    // As many for each replica: every rank of a stage runs the same schedule.
    const std::int64_t num_micro_batches =
        std::max<std::int64_t>(1, ceil_div(ceil_div(samples, micro_batch), replicas));
    const StepRunner::EvaluationSums sums = runner.evaluate(source, num_micro_batches, wants_to_stop);
    if (sums.is_given_up) return std::nullopt;
    if (sums.target_tokens == 0) throw_no_target(*set);
    losses.push_back(
        {set->name(), sums.loss_sum / static_cast<double>(sums.target_tokens), sums.target_tokens, samples});
  }
  return losses;
}

std::optional<std::vector<TaskResult>> evaluate_tasks(StepRunner& runner, const PhasePlan& plan, Rank rank,
                                                      std::span<const std::unique_ptr<ChoiceTask>> tasks,
                                                      const std::function<bool()>& wants_to_stop) {
  const std::int64_t replicas = plan.mesh.degree(Axis::data);
  const std::int64_t micro_batch = plan.micro_batch.samples;
  std::vector<TaskResult> results;
  for (const auto& task : tasks) {
    TaskSource source(*task, plan, rank);
    const std::int64_t num_micro_batches = ceil_div(ceil_div(task->num_rows(), micro_batch), replicas);
    std::vector<double> losses(static_cast<std::size_t>(num_micro_batches * replicas * micro_batch));
    if (!runner.evaluate_samples(source, num_micro_batches, losses, wants_to_stop)) return std::nullopt;
    losses.resize(static_cast<std::size_t>(task->num_rows()));
    for (double& loss : losses) loss = -loss;
    TaskScore score = task->score(losses);
    results.push_back({task->name(), score, std::move(losses)});
  }
  return results;
}

}  // namespace scaletrain
