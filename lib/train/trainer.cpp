#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "checkpoint/catalog.h"
#include "checkpoint/save.h"
#include "config/load.h"
#include "optim/gradient_norm.h"
#include "optim/lr_schedule.h"
#include "optim/nonfinite_policy.h"
#include "optim/step_block.h"
#include "train/evaluation.h"
#include "train/training_source.h"

namespace scaletrain {

struct Trainer::Impl {
  Impl(const TrainerParts& trainer_parts, RunState run_state)
      : parts(trainer_parts),
        config(trainer_parts.config),
        plan(trainer_parts.plan),
        state(std::move(run_state)),
        source(trainer_parts.data, plan.mesh.degree(Axis::data), 0, plan.micro_batch.samples),
        schedule(plan.schedule(Rank(0))),
        last_save(monotonic_now()) {
    if (state.step > 0) saved_step = state.step;
  }

  TrainOutcome run();
  void train_step();
  // The norm, the decision and the optimizer: what the schedule's optimizer_step means.
  StepOutcome update(const ExecutionResult& result);
  void finish_step(const StepOutcome& outcome, double seconds);
  void record_skip(const StepOutcome& outcome);
  // True if the evaluation improved the early-stop metric.
  bool evaluate();
  bool checkpoint_due() const;
  // must: the run ends with this state, so a failure is an error. best: the last evaluation is the best so far.
  void save(bool must, bool best);
  void prune();
  void enter(bool waiting_on_storage) const {
    if (parts.hooks.entered) parts.hooks.entered(state.step, waiting_on_storage);
  }
  bool interrupted() const { return parts.hooks.interrupted && parts.hooks.interrupted(); }
  std::int64_t total_steps() const { return plan.first_step + plan.num_steps; }

  TrainerParts parts;
  const Config& config;
  const PhasePlan& plan;
  RunState state;
  TrainingSource source;
  std::vector<ScheduleStep> schedule;
  MonotonicTime last_save;
  std::int64_t saved_step = -1;
};

Trainer::Trainer(const TrainerParts& parts, RunState state) : impl_(std::make_unique<Impl>(parts, std::move(state))) {}
Trainer::~Trainer() = default;
TrainOutcome Trainer::run() {
  return impl_->run();
}
const RunState& Trainer::state() const {
  return impl_->state;
}

TrainOutcome Trainer::Impl::run() {
  enter(false);
  while (state.step < total_steps() && !state.early_stop.stopped) {
    if (interrupted()) {
      if (saved_step != state.step) save(true, false);
      return TrainOutcome::interrupted;
    }
    train_step();
    const bool last = state.step == total_steps();
    const bool due = config.evaluate.every > 0 && state.step % config.evaluate.every == 0;
    const bool improved = (due || last) && evaluate();
    const bool best = improved && config.checkpoint.best;
    const bool end = last || state.early_stop.stopped.has_value();
    if (end || best || checkpoint_due()) save(end, best);
  }
  return state.early_stop.stopped ? TrainOutcome::stopped_early : TrainOutcome::finished;
}

void Trainer::Impl::train_step() {
  const MonotonicTime start = monotonic_now();
  source.set_batch(state.history.batch());
  parts.store.zero_gradients(parts.stream);
  StepOutcome outcome;
  parts.executor.run(schedule, source, Phase::train, plan.loss_gradient,
                     [&](const ExecutionResult& sums) { outcome = update(sums); });
  finish_step(outcome, seconds_since(start));
}

StepOutcome Trainer::Impl::update(const ExecutionResult& result) {
  std::array<double, 3> sums = {gradient_sum_of_squares_share(parts.backend, parts.stream, parts.store),
                                result.loss_sum, static_cast<double>(result.target_tokens)};
  sum_over(sums, parts.world);
  const OptimizerConfig& optimizer = config.train.optimizer;
  const StepOutcome outcome = make_step_block(
      {.sum_of_squares = sums[0],
       .loss_sum = sums[1],
       .num_tokens = static_cast<std::int64_t>(sums[2]),
       .micro_scale = plan.loss_gradient},
      {.learning_rate = learning_rate(config.train.lr_schedule, optimizer.learning_rate, state.step + 1, total_steps()),
       .clip_norm = config.train.clip_norm,
       .beta1 = optimizer.beta1,
       .beta2 = optimizer.beta2,
       .update = state.updates + 1});
  parts.optimizer.step(parts.backend, parts.stream, parts.store, outcome.block);
  parts.stream.synchronize();
  return outcome;
}

void Trainer::Impl::finish_step(const StepOutcome& outcome, double seconds) {
  state.history.consume_batch();
  ++state.step;
  const double tokens = static_cast<double>(plan.global_batch) * static_cast<double>(plan.model.context);
  StepRecord record;
  record.step = state.step;
  record.tokens = state.history.tokens_consumed();
  record.loss = outcome.loss;
  record.learning_rate = outcome.block.learning_rate;
  record.grad_norm = outcome.grad_norm;
  record.step_seconds = seconds;
  record.tokens_per_second = tokens / seconds;
  const double flops = model_flops_per_token(plan.model) * record.tokens_per_second;
  // Calibrated while the machine was busy, the peak may be too low: what was reached is a better bound then.
  if (parts.peak_flops > 0.0) {
    parts.peak_flops = std::max(parts.peak_flops, flops);
    record.mfu = flops / parts.peak_flops;
  }
  parts.metrics.write(record);
  parts.progress.step(record);
  if (outcome.skip == SkipReason::none) {
    ++state.updates;
  } else {
    record_skip(outcome);
  }
  try {
    state.nonfinite = after_step(state.nonfinite, outcome.skip, config.train.nonfinite.skip, Step(state.step));
  } catch (const DivergedError& error) {
    parts.metrics.sync();
    throw DivergedError(
        fmt::format("{}; the batch's sample ids are in {}; {}", error.what(), parts.paths.metrics().string(),
                    saved_step >= 0 ? fmt::format("the newest checkpoint is that of step {}", saved_step)
                                    : "no checkpoint was written"));
  }
  enter(false);
}

void Trainer::Impl::record_skip(const StepOutcome& outcome) {
  SkipRecord record;
  record.step = state.step;
  record.reason = to_text(outcome.skip);
  for (const std::int64_t sample : source.batch()) record.samples.push_back(static_cast<std::uint64_t>(sample));
  parts.metrics.write(record);
  parts.log.warn(fmt::format("step {} was skipped, the weights are untouched: {}", state.step, record.reason));
}

bool Trainer::Impl::evaluate() {
  if (parts.validation.empty()) return false;
  // More than 63 bits count is more than any set holds: all of it.
  const std::int64_t samples = try_mul(config.evaluate.batches, plan.global_batch).value_or(0);
  const auto losses = evaluate_sets(parts.executor, parts.validation, samples, plan.micro_batch.samples);
  bool improved = false;
  for (const SetLoss& set : losses) {
    EvaluationRecord record;
    record.step = state.step;
    record.dataset = set.dataset;
    record.loss = set.loss;
    record.tokens = set.tokens;
    parts.metrics.write(record);
    parts.log.info(fmt::format("step {}: validation/{}/loss {:.4f}", state.step, set.dataset, set.loss));
    if (!config.early_stop || config.early_stop->metric != "validation/" + set.dataset + "/loss") continue;
    const EarlyStopVerdict verdict = observe(*config.early_stop, state.early_stop, state.step, set.loss);
    improved = verdict.improved;
    if (!verdict.stop) continue;
    EarlyStopRecord stop;
    stop.step = state.step;
    stop.metric = config.early_stop->metric;
    stop.value = set.loss;
    stop.reason = verdict.reason;
    parts.metrics.write(stop);
    parts.log.info("stopping early: " + verdict.reason);
  }
  enter(false);
  return improved;
}

bool Trainer::Impl::checkpoint_due() const {
  const CheckpointConfig& policy = config.checkpoint;
  if (policy.every_steps && *policy.every_steps > 0 && state.step % *policy.every_steps == 0) return true;
  return policy.every_seconds && seconds_since(last_save) >= *policy.every_seconds;
}

// An old checkpoint too many is no reason to end a run.
void Trainer::Impl::prune() {
  const RetentionPolicy policy{.keep = config.checkpoint.keep,
                               .keep_every = config.checkpoint.keep_every,
                               .best_save_id = config.checkpoint.best ? state.best_save_id : std::nullopt};
  try {
    prune_checkpoints(parts.paths.checkpoints(), policy, [this](const std::string& text) { parts.log.warn(text); });
  } catch (const InputError& error) {
    parts.log.warn(fmt::format("old checkpoints were not removed: {}", error.what()));
  }
}

void Trainer::Impl::save(bool must, bool best) {
  enter(true);
  SaveRequest request;
  request.folder = parts.paths.checkpoints();
  request.manifest.config = resolved_yaml(config);
  request.manifest.fingerprint = parts.fingerprint;
  for (const auto& file : parts.tokenizer_files) request.manifest.tokenizer_files.push_back(file.filename().string());
  request.tokenizer_files = parts.tokenizer_files;
  request.may_commit = parts.hooks.may_commit;
  write_state(state, best, request.manifest);
  parts.metrics.sync();
  CheckpointRecord record;
  record.step = state.step;
  try {
    const SaveResult result = save_checkpoint(parts.store, request);
    state.parent_save_id = result.save_id;
    if (best) state.best_save_id = result.save_id;
    saved_step = state.step;
    record.path = result.path.string();
    record.seconds = result.seconds;
    record.bytes = static_cast<std::int64_t>(result.bytes);
    parts.log.info(fmt::format("step {}: saved {}", state.step, result.path.string()));
  } catch (const InputError& error) {
    record.failure = error.what();
    parts.metrics.write(record);
    parts.metrics.sync();
    if (must) throw;
    parts.log.error(
        fmt::format("step {}: the checkpoint was not saved, training goes on and tries again at the next one: {}",
                    state.step, error.what()));
    last_save = monotonic_now();
    enter(false);
    return;
  }
  parts.metrics.write(record);
  parts.metrics.sync();
  prune();
  last_save = monotonic_now();
  enter(false);
}

}  // namespace scaletrain
