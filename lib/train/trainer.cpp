#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/numbers/checked.h"
#include "base/text.h"
#include "config/batch_ramp.h"
#include "config/keys/keys.h"
#include "config/phases.h"
#include "optim/gradient_noise.h"
#include "optim/loss_scale.h"
#include "optim/nonfinite_policy.h"
#include "optim/spike_policy.h"
#include "optim/step_scalars.h"
#include "telemetry/loss_text.h"
#include "train/data/data_left.h"
#include "train/data/phase_reads.h"
#include "train/evaluation.h"
#include "train/rollback.h"
#include "train/run_length.h"
#include "train/saving/checkpointer.h"
#include "train/step_batch.h"
#include "train/training_source.h"

namespace scaletrain {

struct Trainer::Impl {
  Impl(const TrainerParts& trainer_parts, RunState run_state)
      : parts(trainer_parts),
        config(trainer_parts.config),
        plan(trainer_parts.plan),
        state(std::move(run_state)),
        source(trainer_parts.data, plan.mesh.degree(Axis::data), plan.mesh.position_of(trainer_parts.rank).data,
               plan.micro_batch.samples),
        checkpoints(checkpointer_parts(), state),
        rollback(rollback_parts()) {
    if (!config.train.spike) state.spike = {};
  }

  TrainOutcome run();
  // What the next step reads: of the phase that it is in.
  void prepare_step();
  void begin_phase();
  // This rank's, at the end of a step; and those of all.
  StepRunner::Votes own_votes() const;
  // What follows a step: evaluation, checkpoint, and whether the run leaves. all: the votes of the step.
  std::optional<TrainOutcome> conclude_step(const StepRunner::Votes& all);
  // Nothing if training went back to an older state instead of making this step.
  std::optional<StepRunner::Votes> train_step();
  // The step itself, in halves where it measures the gradient's noise.
  StepRunner::Result make_step(const StepSettings& settings);
  void finish_step(const StepRunner::Result& result, double seconds);
  void tell(const std::string& line) const {
    if (!line.empty()) parts.log.info(line);
  }
  double flops_per_token() const;  // of the step's samples
  void record_skip(const StepOutcome& outcome);
  std::vector<std::uint64_t> batch_samples() const;
  // The spike policy, for a step whose loss is finite. level: what its loss is measured against.
  void judge_loss(const StepOutcome& outcome, const std::optional<LossLevel>& level);
  // False if there is nothing to go back to.
  bool go_back(SpikeRecord line);
  [[noreturn]] void diverge(const DivergedError& error);
  // Nothing is lost: the state is saved first.
  [[noreturn]] void end_without_data();
  std::string advice() const;
  struct Measured {
    std::vector<SetLoss> losses;
    std::vector<TaskResult> results;
  };
  // Nothing if a rank was asked to leave before its end. Of the weights; of what evaluate.ema says.
  std::optional<Measured> measure();
  std::optional<Measured> measure_averages();
  // True if the evaluation improved the early-stop metric; nothing if a rank was asked to leave before its end.
  std::optional<bool> evaluate();
  // The tasks' part of it, of their results.
  bool judge_tasks(const std::vector<TaskResult>& results);
  // Early stopping's part of it: whether this value improved the metric that it is. afresh: for people.
  bool judge_metric(double value, const std::optional<std::string>& afresh);
  Checkpointer::Parts checkpointer_parts();
  Rollback::Parts rollback_parts() const;
  void enter(bool waiting_on_storage) const {
    if (parts.hooks.entered) parts.hooks.entered(state.step, waiting_on_storage);
  }
  bool interrupted() const { return parts.hooks.interrupted && parts.hooks.interrupted(); }
  bool is_alone() const { return parts.rendezvous == nullptr; }
  bool is_first() const { return parts.rank == Rank(0); }
  std::int64_t total_steps() const { return last_step(config, state); }
  template <class Record>
  void record(const Record& line) {
    if (parts.metrics != nullptr) parts.metrics->write(line);
  }
  void sync_metrics() {
    if (parts.metrics != nullptr) parts.metrics->sync();
  }

  TrainerParts parts;
  const Config& config;
  const PhasePlan& plan;
  RunState state;
  TrainingSource source;
  Checkpointer checkpoints;
  Rollback rollback;
  MonotonicTime begin = monotonic_now();
  bool has_told_fixed_scale = false;
  std::optional<std::int64_t> phase{};  // that was entered; nothing: none, or training has gone back since
  bool owes_save = false;               // one was due while no updates were made; the same on every rank
};

Trainer::Trainer(const TrainerParts& parts, RunState state) : impl_(std::make_unique<Impl>(parts, std::move(state))) {}
Trainer::~Trainer() = default;
TrainOutcome Trainer::run() {
  return impl_->run();
}
void Trainer::finish_save(const std::string& reason) {
  impl_->checkpoints.end(reason);
}
const RunState& Trainer::state() const {
  return impl_->state;
}

// Whatever decides what happens next is the same on every rank: the state, the votes of a step, the losses of an
// evaluation. A rank that is alone need not ask the others, and acts on a wish between two steps.
TrainOutcome Trainer::Impl::run() {
  enter(false);
  while (state.is_evaluation_due || (state.step < total_steps() && !state.early_stop.stopped)) {
    if (state.is_evaluation_due) {
      if (const auto outcome = conclude_step({})) return *outcome;
      continue;
    }
    if (is_alone() && interrupted()) {
      if (checkpoints.saved_step() != state.step) checkpoints.save({.must = true});
      return TrainOutcome::interrupted;
    }
    prepare_step();
    if (!has_next_batch(parts.data, state)) end_without_data();
    const std::optional<StepRunner::Votes> votes = train_step();
    if (!votes) continue;
    if (const auto outcome = conclude_step(*votes)) return *outcome;
  }
  return state.early_stop.stopped ? TrainOutcome::stopped_early : TrainOutcome::finished;
}

void Trainer::Impl::prepare_step() {
  TrainConfig train = train_from(config, state);
  if (train.adapts_batch) {
    train.global_batch = filled_batch(parts.data, train, state);
    tell(text_of_fall(state, train.global_batch));
  }
  const std::int64_t next =
      config.train.phases.empty() ? 0 : static_cast<std::int64_t>(place_in_phases(config.train, state.step).index);
  if (config.train.phases.empty() || phase == next) {
    state.history.change_batch(batch_of_step(train, state.step));
    return;
  }
  enter_phase(config, config.train, state.step, parts.data, state.history);
  phase = next;
  if (phase_of_step(config, state.step).first_step == state.step) begin_phase();
}

// Once in the life of a run: a start from a checkpoint of the step before it makes it again, and cancels the line.
void Trainer::Impl::begin_phase() {
  const TrainingPhase now = phase_of_step(config, state.step);
  if (state.step > 0) {
    // Losses of other samples are no measure of a jump.
    const TrainingPhase before = phase_of_step(config, state.step - 1);
    if (now.context != before.context || now.weights != before.weights) {
      state.spike.losses.clear();
      state.spike.row = 0;
    }
  }
  const PhaseRecord line = phase_record(config, now, state.step + 1);
  record(line);
  parts.log.info(fmt::format("step {} begins {}", line.step, phase_text(config, now)));
}

// An evaluation may take longer than a run that is asked to leave is given: then the state is saved first, and the next
// start makes the evaluation before its first step.
std::optional<TrainOutcome> Trainer::Impl::conclude_step(const StepRunner::Votes& all) {
  const bool was_left_over = state.is_evaluation_due;
  const bool last = state.step == total_steps();
  const bool due = config.evaluate.every > 0 && state.step % config.evaluate.every == 0;
  bool leave = all.interrupted;
  bool improved = false;
  state.is_evaluation_due = (!parts.validation.empty() || !parts.tasks.empty()) && (was_left_over || due || last);
  if (state.is_evaluation_due && !leave) {
    const std::optional<bool> evaluated = evaluate();
    leave = !evaluated;
    improved = evaluated.value_or(false);
    state.is_evaluation_due = !evaluated;
  }
  const bool best = improved && config.checkpoint.best;
  const bool end = !state.is_evaluation_due && (last || state.early_stop.stopped.has_value());
  leave = leave && !end;
  const bool due_by_time = is_alone() ? checkpoints.due_by_time() : all.save;
  // The checkpoint that the run left with says that the evaluation is due, and must not stay so.
  const bool is_saved_again = was_left_over && !state.is_evaluation_due;
  if (is_saved_again) {
    checkpoints.save({.best = best, .again = true});
    checkpoints.settle();
  }
  // While no update is made there is nothing new to save, and what is there may be the last good state.
  owes_save = owes_save || checkpoints.due_by_step() || due_by_time;
  const bool due_by_interval = owes_save && state.nonfinite.consecutive == 0;
  if (due_by_interval) owes_save = false;
  if (end || leave || (!is_saved_again && (best || due_by_interval)))
    checkpoints.save({.must = end || leave, .best = best && !is_saved_again});
  if (leave) {
    if (state.is_evaluation_due)
      parts.log.info(fmt::format("step {}: its evaluation is left to the next start", state.step));
    return TrainOutcome::interrupted;
  }
  return std::nullopt;
}

StepRunner::Votes Trainer::Impl::own_votes() const {
  if (is_alone()) return {};
  return {.interrupted = interrupted(), .save = is_first() && checkpoints.due_by_time()};
}

std::optional<StepRunner::Votes> Trainer::Impl::train_step() {
  const MonotonicTime start = monotonic_now();
  const std::int64_t generation = state.generation;
  const std::optional<SpikeConfig>& policy = config.train.spike;
  const std::optional<LossLevel> level = policy ? loss_level(*policy, state.spike) : std::nullopt;
  source.set_batch(state.history.batch());
  const OptimizerConfig& optimizer = config.train.optimizer;
  const StepRunner::Result result = make_step(
      {.learning_rate = next_learning_rate(config, state),
       .clip_norm = config.train.clip_norm,
       .beta1 = optimizer.beta1,
       .beta2 = optimizer.beta2,
       .slow = slow_mean_at(optimizer, state.updates + 1, slow_warmup(config, state)),
       .update = state.updates + 1,
       .loss_limit = level && policy->action != SpikeAction::warn ? std::optional(level->limit) : std::nullopt,
       .loss_scale = loss_scale_of(config.precision, state.loss_scale),
       .scale_can_fall = can_fall(state.loss_scale)});
  checkpoints.poll();
  finish_step(result, seconds_since(start));
  const SkipReason skip = result.outcome.skip;
  if (policy && (skip == SkipReason::none || skip == SkipReason::spike)) judge_loss(result.outcome, level);
  enter(false);
  if (state.generation != generation) return std::nullopt;
  return result.votes;
}

StepRunner::Result Trainer::Impl::make_step(const StepSettings& settings) {
  const StepRunner::AskVotes votes = [this] { return own_votes(); };
  const StepRunner::BeforeUpdate before_update = [this] { checkpoints.before_update(); };
  const std::vector<std::int64_t>& samples = source.batch();
  const auto count = narrow<std::int64_t>(samples.size());
  if (!measures_noise(config.log.gradient_noise, state.step + 1, count))
    return parts.runner.step(source, settings, votes, before_update, plan.micro_batches_of(count),
                             parts.data.context());
  const std::array<std::int64_t, 2> counts = halves_of(count);
  TrainingSource first = source;
  TrainingSource second = source;
  first.set_batch({samples.begin(), samples.begin() + counts[0]});
  second.set_batch({samples.begin() + counts[0], samples.end()});
  return parts.runner.step_in_halves({{{first, counts[0]}, {second, counts[1]}}}, settings, votes, before_update);
}

void Trainer::Impl::finish_step(const StepRunner::Result& result, double seconds) {
  const StepOutcome& outcome = result.outcome;
  const std::int64_t batch_tokens = source.batch_tokens();
  state.history.consume_batch(batch_tokens);
  ++state.step;
  const auto tokens = static_cast<double>(batch_tokens);
  StepRecord line;
  line.step = state.step;
  line.tokens = state.history.tokens_consumed();
  line.loss = outcome.loss;
  line.learning_rate = outcome.block.learning_rate;
  line.grad_norm = outcome.grad_norm;
  if (config.precision.compute == Precision::fp16) line.loss_scale = loss_scale_of(config.precision, state.loss_scale);
  if (is_first() && parts.store.backend().device())
    line.gpu_memory_in_use = parts.store.backend().device_memory_in_use();
  line.step_seconds = seconds;
  line.tokens_per_second = tokens / seconds;
  line.elapsed_seconds = parts.elapsed_before + seconds_since(begin);
  line.wall_time = wall_clock_text();
  const double flops = flops_per_token() * line.tokens_per_second;
  if (parts.peak.is_measured) parts.peak.flops = std::max(parts.peak.flops, flops);
  if (parts.peak.flops > 0.0) line.mfu = flops / parts.peak.flops;
  if (config.train.adapts_batch) line.batch = narrow<std::int64_t>(source.batch().size());
  if (result.noise) {
    state.gradient_noise =
        after_measurement(state.gradient_noise.value(), *result.noise, config.log.gradient_noise->decay);
    const auto batch = narrow<std::int64_t>(source.batch().size());
    line.noise = NoiseRecord{.square = result.noise->square,
                             .variance = result.noise->variance,
                             .scale = noise_scale(*state.gradient_noise),
                             .batch_small = halves_of(batch)[0],
                             .batch_big = batch};
  }
  record(line);
  if (is_first()) {
    parts.progress.set_total_steps(total_steps());  // padding makes a run of so many tokens longer
    parts.progress.step(line);
  }
  if (state.loss_scale) state.loss_scale = after_step(*state.loss_scale, outcome.skip);
  if (outcome.skip == SkipReason::none) {
    ++state.updates;
  } else if (outcome.skip != SkipReason::spike) {
    record_skip(outcome);
  }
  try {
    state.nonfinite = after_step(state.nonfinite, outcome.skip, config.train.nonfinite.skip, Step(state.step),
                                 config.precision.loss_scale);
  } catch (const DivergedError& error) {
    diverge(error);
  }
  if (config.train.adapts_batch) tell(follow_noise(config.train, state));
}

double Trainer::Impl::flops_per_token() const {
  if (parts.data.context() == plan.model.context) return model_flops_per_token(plan.model, plan.table, state.updates);
  ModelSpec model = plan.model;
  model.context = parts.data.context();
  return model_flops_per_token(model, plan.table, state.updates);
}

void Trainer::Impl::diverge(const DivergedError& error) {
  checkpoints.settle();
  sync_metrics();
  parts.runner.wait_for_all();
  throw DivergedError(
      fmt::format("{}; the batch's sample ids are in {}. {}", error.what(), parts.paths.metrics().string(), advice()));
}

// The start counts what the caps leave (data_left.h), but may only have known bounds of it.
void Trainer::Impl::end_without_data() {
  checkpoints.save({.must = true});
  parts.runner.wait_for_all();
  throw UserError(fmt::format("{}. The run ends with step {}, which is saved in {}",
                              data_shortage(parts.data, config, state), state.step,
                              parts.paths.checkpoints().string()));
}

// Started again as it was, the run comes to the same step.
std::string Trainer::Impl::advice() const {
  const std::optional<double>& fixed_scale = config.precision.loss_scale;
  const std::string lower =
      fmt::format("--set train.optimizer.learning_rate={:.3g} (it is {:.3g})", config.train.optimizer.learning_rate / 2,
                  config.train.optimizer.learning_rate) +
      (fixed_scale ? fmt::format(" or --set precision.loss_scale=dynamic (it is {})", *fixed_scale) : "");
  if (checkpoints.saved_step() <= 0)
    return fmt::format("No checkpoint was written: started again, the run begins anew; change something, such as {}",
                       lower);
  std::string text = fmt::format(
      "The newest checkpoint is that of step {}. Run again as it was, training comes to the same step: change "
      "something, such as {}, or begin further back with --resume {}",
      checkpoints.saved_step(), lower, (parts.paths.checkpoints() / "step-...").string());
  if (!config.train.spike || config.train.spike->action != SpikeAction::rollback)
    text += "; train.spike: {action: rollback} goes back and leaves samples out by itself where the loss jumps";
  return text;
}

void Trainer::Impl::record_skip(const StepOutcome& outcome) {
  SkipRecord line;
  line.step = state.step;
  line.reason = to_text(outcome.skip);
  line.samples = batch_samples();
  record(line);
  if (is_first()) parts.progress.skip(line);
  const std::string text =
      fmt::format("step {} was skipped, the weights are untouched: {}", state.step, words_of(outcome.skip));
  if (outcome.skip == SkipReason::overflow) {  // nothing to worry about: that is how the scale is found
    parts.log.info(fmt::format("{}, which falls to {}", text, state.loss_scale->scale));
  } else {
    parts.log.warn(text);
  }
  // No fixed scale falls by itself, so that what it makes overflow it will again.
  if (outcome.skip != SkipReason::nonfinite_gradient || !config.precision.loss_scale || has_told_fixed_scale) return;
  has_told_fixed_scale = true;
  parts.log.warn(fmt::format(
      "gradients that overflow fp16 under a fixed loss scale: lower precision.loss_scale, which is {}, or take dynamic",
      *config.precision.loss_scale));
}

std::vector<std::uint64_t> Trainer::Impl::batch_samples() const {
  return {source.batch().begin(), source.batch().end()};
}

void Trainer::Impl::judge_loss(const StepOutcome& outcome, const std::optional<LossLevel>& level) {
  const SpikeConfig& policy = *config.train.spike;
  SpikeState next = after_loss(policy, state.spike, Step(state.step), outcome.loss);
  if (!level || outcome.loss <= level->limit) {
    state.spike = std::move(next);
    return;
  }
  SpikeRecord line;
  line.step = state.step;
  line.loss = outcome.loss;
  line.mean = level->mean;
  line.deviation = level->deviation;
  line.zscore = level->score(outcome.loss);
  line.samples = batch_samples();
  parts.log.warn(
      fmt::format("step {}: the loss jumped to {}, {:.1f} standard deviations above the mean {} of "
                  "the last {} (train.spike)",
                  line.step, loss_text(line.loss), line.zscore, loss_text(line.mean), policy.window));
  if (policy.action == SpikeAction::rollback && go_back(line)) return;
  line.action = to_text(policy.action == SpikeAction::warn ? SpikeAction::warn : SpikeAction::skip);
  record(line);
  if (outcome.skip == SkipReason::spike) record_skip(outcome);
  state.spike = std::move(next);
  if (state.spike.losses.empty())
    parts.log.warn(
        fmt::format("step {}: {} such steps in a row are the level that the loss has now: it is measured "
                    "anew from here",
                    state.step, policy.window));
}

bool Trainer::Impl::go_back(SpikeRecord line) {
  // A save under way is of this branch, and ends before the branch does.
  checkpoints.settle();
  enter(true);
  Rollback::Result result;
  try {
    result = rollback.run(state, source.batch().back());
  } catch (const DivergedError& error) {
    line.action = "stop";
    record(line);
    diverge(error);
  }
  if (!result.state) {
    parts.log.error(
        fmt::format("step {}: training cannot go back, the update is skipped instead: {}", line.step, result.reason));
    return false;
  }
  line.action = to_text(SpikeAction::rollback);
  line.within_window = result.within_window;
  record(line);
  if (result.within_window)
    parts.log.warn(fmt::format(
        "step {}: no checkpoint is as old as training was to go back (train.spike: a window before the jump, and "
        "another each further time in a row); it goes back to that of step {}, which may be on its way to "
        "the spike already. Raise checkpoint.keep, or set checkpoint.keep_every",
        line.step, result.state->step));
  state = std::move(*result.state);
  phase.reset();
  checkpoints.went_back();
  // The checkpoint is replaced by one that knows what is skipped, and of which branch it is. First that, then the line
  // that makes the steps beyond it void: a crash in between goes on with the abandoned branch as it was.
  checkpoints.save({.best = state.best_save_id == state.parent_save_id});
  checkpoints.settle();
  owes_save = false;
  rollback.leave_branch(state);
  RestartRecord restart;
  restart.step = state.step;
  restart.generation = state.generation;
  restart.checkpoint = result.checkpoint.string();
  restart.fingerprint_changed = result.fingerprint != parts.fingerprint;
  restart.cause = fmt::format("the loss jumped at step {} (train.spike)", line.step);
  restart.wall_time = wall_clock_text();
  restart.device = parts.device;
  restart.layout = parts.layout;
  record(restart);
  if (is_first()) parts.progress.went_back(restart.step);
  sync_metrics();
  parts.log.warn(fmt::format("training went back from step {} to step {} ({}); the samples in between are skipped",
                             line.step, state.step, result.checkpoint.string()));
  return true;
}

std::optional<Trainer::Impl::Measured> Trainer::Impl::measure() {
  auto losses = evaluate_sets(parts.runner, plan, parts.rank, parts.validation, max_evaluated(config),
                              parts.hooks.interrupts_evaluation);
  if (!losses) return std::nullopt;
  // All of it before anything is told or judged: an evaluation that is given up is made anew.
  auto results = evaluate_tasks(parts.runner, plan, parts.rank, parts.tasks, parts.hooks.interrupts_evaluation);
  if (!results) return std::nullopt;
  return Measured{std::move(*losses), std::move(*results)};
}

// Before the first update there is no average yet, and the weights are what it would be.
std::optional<Trainer::Impl::Measured> Trainer::Impl::measure_averages() {
  if (!config.evaluate.ema || state.updates == 0) return measure();
  const auto swap = [this] { parts.runner.swap_average([this] { checkpoints.before_update(); }); };
  swap();
  auto measured = measure();
  swap();
  return measured;
}

std::optional<bool> Trainer::Impl::evaluate() {
  const std::optional<Measured> measured = measure_averages();
  if (!measured) return std::nullopt;
  const auto* const losses = &measured->losses;
  const auto* const results = &measured->results;
  bool improved = false;
  for (std::size_t i = 0; i < losses->size(); ++i) {
    const SetLoss& set = (*losses)[i];
    EvaluationRecord line;
    line.step = state.step;
    line.dataset = set.dataset;
    line.loss = set.loss;
    line.tokens = set.tokens;
    record(line);
    if (is_first()) parts.progress.evaluation(line);
    parts.log.info(fmt::format("step {}: validation/{}/loss {}", state.step, set.dataset, loss_text(set.loss)));
    if (config.early_stop && config.early_stop->metric == "validation/" + set.dataset + "/loss")
      improved = judge_metric(set.loss, measure_set(*parts.validation[i], config, state));
  }
  if (judge_tasks(*results)) improved = true;
  enter(false);
  return improved;
}

bool Trainer::Impl::judge_tasks(const std::vector<TaskResult>& results) {
  bool improved = false;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const std::string& task = results[i].task;
    const TaskScore& score = results[i].score;
    const TaskRecord line{.step = state.step,
                          .task = task,
                          .accuracy = score.accuracy,
                          .accuracy_error = score.accuracy_error,
                          .normalized_accuracy = score.normalized_accuracy,
                          .normalized_accuracy_error = score.normalized_accuracy_error,
                          .questions = score.questions};
    record(line);
    if (is_first()) parts.progress.task(line);
    const std::string metric = "task/" + task + "/accuracy";
    parts.log.info(fmt::format("step {}: {} {:.4f}{}, of {}", state.step, metric, score.accuracy,
                               score.accuracy_error ? fmt::format(" ± {:.4f}", *score.accuracy_error) : "",
                               grouped_count(static_cast<std::uint64_t>(score.questions), "question")));
    if (config.early_stop && config.early_stop->metric == metric)
      improved = judge_metric(score.accuracy, measure_task(*parts.tasks[i], config, state));
  }
  return improved;
}

bool Trainer::Impl::judge_metric(double value, const std::optional<std::string>& afresh) {
  const std::string& metric = config.early_stop->metric;
  if (afresh) parts.log.warn(*afresh);
  const EarlyStopVerdict verdict = observe(*config.early_stop, state.early_stop, state.step, value);
  if (!verdict.stop) return verdict.improved;
  EarlyStopRecord stop;
  stop.step = state.step;
  stop.metric = metric;
  stop.value = value;
  stop.reason = verdict.reason;
  record(stop);
  parts.log.info("stopping early: " + verdict.reason);
  return verdict.improved;
}

Checkpointer::Parts Trainer::Impl::checkpointer_parts() {
  return {.config = config,
          .plan = plan,
          .stream = parts.stream,
          .store = parts.store,
          .rank = parts.rank,
          .rendezvous = parts.rendezvous,
          .background_rendezvous = parts.background_rendezvous,
          .paths = parts.paths,
          .metrics = parts.metrics,
          .log = parts.log,
          .tokenizer_files = parts.tokenizer_files,
          .fingerprint = parts.fingerprint,
          .may_commit = parts.hooks.may_commit,
          .entered = [this](bool waiting_on_storage) { enter(waiting_on_storage); },
          .grace_seconds = grace_seconds(),
          .work = parts.work};
}

Rollback::Parts Trainer::Impl::rollback_parts() const {
  return {.config = config,
          .stream = parts.stream,
          .store = parts.store,
          .data = parts.data,
          .rank = parts.rank,
          .world = plan.mesh.world(),
          .rendezvous = parts.rendezvous,
          .checkpoints = parts.paths.checkpoints(),
          .log = parts.log,
          .may_commit = parts.hooks.may_commit,
          .start_generation = state.generation,
          .work = parts.work};
}

}  // namespace scaletrain
