#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "checkpoint/catalog.h"
#include "checkpoint/save.h"
#include "config/load.h"
#include "optim/lr_schedule.h"
#include "optim/nonfinite_policy.h"
#include "optim/step_block.h"
#include "train/evaluation.h"
#include "train/training_source.h"

namespace scaletrain {

namespace {

// Bytes per second and rank below which a save is given up, beyond the time that is allowed to any: a shared file
// system under the load of all ranks is slow, but not slower.
constexpr double slowest_write = 10e6;
// The same for one rank that reads a whole checkpoint.
constexpr double slowest_read = 10e6;

// Of all ranks: one deadline holds for all of them. Replicas hold alike.
std::size_t largest_store_bytes(const PhasePlan& plan) {
  std::size_t largest = 0;
  for (std::int64_t pipeline = 0; pipeline < plan.mesh.degree(Axis::pipeline); ++pipeline) {
    for (std::int64_t tensor = 0; tensor < plan.mesh.degree(Axis::tensor); ++tensor) {
      const ShardLayout layout = plan.layout(plan.mesh.rank_of({.tensor = tensor, .data = 0, .pipeline = pipeline}));
      largest = std::max(largest, store_bytes(plan.table, layout, plan.store_options(plan.masters())).total());
    }
  }
  return largest;
}

}  // namespace

struct Trainer::Impl {
  Impl(const TrainerParts& trainer_parts, RunState run_state)
      : parts(trainer_parts),
        config(trainer_parts.config),
        plan(trainer_parts.plan),
        state(std::move(run_state)),
        source(trainer_parts.data, plan.mesh.degree(Axis::data), plan.mesh.position_of(trainer_parts.rank).data,
               plan.micro_batch.samples),
        last_save(monotonic_now()) {
    if (state.step > 0) saved_step = state.step;
    if (!is_alone()) largest_store = largest_store_bytes(plan);
  }

  TrainOutcome run();
  // This rank's, at the end of a step; and those of all.
  StepRunner::Votes own_votes() const;
  StepRunner::Votes train_step();
  void finish_step(const StepOutcome& outcome, double seconds);
  void record_skip(const StepOutcome& outcome);
  // True if the evaluation improved the early-stop metric.
  bool evaluate();
  bool save_due_by_step() const;
  bool save_due_by_time() const;
  SaveRequest save_request(bool best);
  // must: the run ends with this state, so a failure is an error. best: the last evaluation is the best so far.
  void save(bool must, bool best);
  void prune();
  // Rank 0 prunes, which after a start may verify a checkpoint or two of this size; the others wait for it here and not
  // in the next step's collectives, whose deadlines are short.
  void prune_together(std::int64_t checkpoint_bytes);
  void wait_for_pruning(const std::string& key, double seconds);
  void enter(bool waiting_on_storage) const {
    if (parts.hooks.entered) parts.hooks.entered(state.step, waiting_on_storage);
  }
  bool interrupted() const { return parts.hooks.interrupted && parts.hooks.interrupted(); }
  bool is_alone() const { return parts.rendezvous == nullptr; }
  bool is_first() const { return parts.rank == Rank(0); }
  std::int64_t total_steps() const { return plan.first_step + plan.num_steps; }
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
  MonotonicTime last_save;
  std::set<std::string> known_saves;  // rank 0: ids of those that this process wrote or verified
  std::size_t largest_store = 0;      // bytes; of several ranks
  std::int64_t saved_step = -1;
  std::int64_t num_saves = 0;    // tried, by all ranks alike
  std::int64_t pruned_save = 0;  // the last one that rank 0 pruned after
};

Trainer::Trainer(const TrainerParts& parts, RunState state) : impl_(std::make_unique<Impl>(parts, std::move(state))) {}
Trainer::~Trainer() = default;
TrainOutcome Trainer::run() {
  return impl_->run();
}
const RunState& Trainer::state() const {
  return impl_->state;
}

// Whatever decides what happens next is the same on every rank: the state, the votes of a step, the losses of an
// evaluation. A rank that is alone need not ask the others, and acts on a wish between two steps.
TrainOutcome Trainer::Impl::run() {
  enter(false);
  while (state.step < total_steps() && !state.early_stop.stopped) {
    if (is_alone() && interrupted()) {
      if (saved_step != state.step) save(true, false);
      return TrainOutcome::interrupted;
    }
    const StepRunner::Votes all = train_step();
    const bool last = state.step == total_steps();
    const bool due = config.evaluate.every > 0 && state.step % config.evaluate.every == 0;
    const bool improved = (due || last) && evaluate();
    const bool best = improved && config.checkpoint.best;
    const bool end = last || state.early_stop.stopped.has_value();
    const bool leave = all.interrupted && !end;
    const bool due_by_time = is_alone() ? save_due_by_time() : all.save;
    if (end || leave || best || save_due_by_step() || due_by_time) save(end || leave, best);
    if (leave) return TrainOutcome::interrupted;
  }
  return state.early_stop.stopped ? TrainOutcome::stopped_early : TrainOutcome::finished;
}

StepRunner::Votes Trainer::Impl::own_votes() const {
  if (is_alone()) return {};
  return {.interrupted = interrupted(), .save = is_first() && save_due_by_time()};
}

StepRunner::Votes Trainer::Impl::train_step() {
  const MonotonicTime start = monotonic_now();
  source.set_batch(state.history.batch());
  const OptimizerConfig& optimizer = config.train.optimizer;
  const StepRunner::Result result = parts.runner.step(
      source,
      {.learning_rate = learning_rate(config.train.lr_schedule, optimizer.learning_rate, state.step + 1, total_steps()),
       .clip_norm = config.train.clip_norm,
       .beta1 = optimizer.beta1,
       .beta2 = optimizer.beta2,
       .update = state.updates + 1},
      [this] { return own_votes(); });
  finish_step(result.outcome, seconds_since(start));
  return result.votes;
}

void Trainer::Impl::finish_step(const StepOutcome& outcome, double seconds) {
  state.history.consume_batch();
  ++state.step;
  const double tokens = static_cast<double>(plan.global_batch) * static_cast<double>(plan.model.context);
  StepRecord line;
  line.step = state.step;
  line.tokens = state.history.tokens_consumed();
  line.loss = outcome.loss;
  line.learning_rate = outcome.block.learning_rate;
  line.grad_norm = outcome.grad_norm;
  line.step_seconds = seconds;
  line.tokens_per_second = tokens / seconds;
  const double flops = model_flops_per_token(plan.model) * line.tokens_per_second;
  // Calibrated while the machine was busy, the peak may be too low: what was reached is a better bound then.
  if (parts.peak_flops > 0.0) {
    parts.peak_flops = std::max(parts.peak_flops, flops);
    line.mfu = flops / parts.peak_flops;
  }
  record(line);
  if (is_first()) parts.progress.step(line);
  if (outcome.skip == SkipReason::none) {
    ++state.updates;
  } else {
    record_skip(outcome);
  }
  try {
    state.nonfinite = after_step(state.nonfinite, outcome.skip, config.train.nonfinite.skip, Step(state.step));
  } catch (const DivergedError& error) {
    sync_metrics();
    parts.runner.wait_for_all();
    throw DivergedError(
        fmt::format("{}; the batch's sample ids are in {}; {}", error.what(), parts.paths.metrics().string(),
                    saved_step >= 0 ? fmt::format("the newest checkpoint is that of step {}", saved_step)
                                    : "no checkpoint was written"));
  }
  enter(false);
}

void Trainer::Impl::record_skip(const StepOutcome& outcome) {
  SkipRecord line;
  line.step = state.step;
  line.reason = to_text(outcome.skip);
  for (const std::int64_t sample : source.batch()) line.samples.push_back(static_cast<std::uint64_t>(sample));
  record(line);
  parts.log.warn(fmt::format("step {} was skipped, the weights are untouched: {}", state.step, line.reason));
}

bool Trainer::Impl::evaluate() {
  if (parts.validation.empty()) return false;
  // More than 63 bits count is more than any set holds: all of it.
  const std::int64_t samples = try_mul(config.evaluate.batches, plan.global_batch).value_or(0);
  const auto losses = evaluate_sets(parts.runner, plan, parts.rank, parts.validation, samples);
  bool improved = false;
  for (const SetLoss& set : losses) {
    EvaluationRecord line;
    line.step = state.step;
    line.dataset = set.dataset;
    line.loss = set.loss;
    line.tokens = set.tokens;
    record(line);
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
    record(stop);
    parts.log.info("stopping early: " + verdict.reason);
  }
  enter(false);
  return improved;
}

bool Trainer::Impl::save_due_by_step() const {
  const auto& every = config.checkpoint.every_steps;
  return every && *every > 0 && state.step % *every == 0;
}

bool Trainer::Impl::save_due_by_time() const {
  const auto& every = config.checkpoint.every_seconds;
  return every && seconds_since(last_save) >= *every;
}

// An old checkpoint too many is no reason to end a run.
void Trainer::Impl::prune() {
  const RetentionPolicy policy{.keep = config.checkpoint.keep,
                               .keep_every = config.checkpoint.keep_every,
                               .best_save_id = config.checkpoint.best ? state.best_save_id : std::nullopt};
  try {
    prune_checkpoints(parts.paths.checkpoints(), policy, known_saves,
                      [this](const std::string& text) { parts.log.warn(text); });
  } catch (const InputError& error) {
    parts.log.warn(fmt::format("old checkpoints were not removed: {}", error.what()));
  }
}

// Storage that is slow to forget ends no run; a rank 0 that is gone does.
void Trainer::Impl::wait_for_pruning(const std::string& key, double seconds) {
  while (!parts.rendezvous->find_within(key, seconds))
    parts.log.warn(
        fmt::format("rank 0 has been removing old checkpoints for {:.0f} s; training waits for it", seconds));
}

void Trainer::Impl::prune_together(std::int64_t checkpoint_bytes) {
  if (is_first()) prune();
  if (is_alone()) return;
  const auto key = [this](std::int64_t save) { return fmt::format("pruned/{}/{}", state.generation, save); };
  if (!is_first()) {
    wait_for_pruning(key(num_saves), SaveGroup().deadline + static_cast<double>(checkpoint_bytes) / slowest_read);
    return;
  }
  parts.rendezvous->set(key(num_saves), "done");
  // Whoever took part in this save has read what was said after the one before.
  parts.rendezvous->remove(key(pruned_save));
  pruned_save = num_saves;
}

SaveRequest Trainer::Impl::save_request(bool best) {
  SaveRequest request;
  request.folder = parts.paths.checkpoints();
  request.manifest.config = resolved_yaml(config);
  request.manifest.fingerprint = parts.fingerprint;
  for (const auto& file : parts.tokenizer_files) request.manifest.tokenizer_files.push_back(file.filename().string());
  request.tokenizer_files = parts.tokenizer_files;
  request.may_commit = parts.hooks.may_commit;
  if (!is_alone()) {
    request.group.rank = parts.rank;
    request.group.world = plan.mesh.world();
    request.group.store = parts.rendezvous;
    request.group.attempt = num_saves;
    request.group.deadline += static_cast<double>(largest_store) / slowest_write;
    request.group.plan_of = [this](Rank rank) { return plan.save_plan(rank); };
  }
  write_state(state, best, request.manifest);
  return request;
}

void Trainer::Impl::save(bool must, bool best) {
  enter(true);
  parts.store.settle(parts.stream);
  ++num_saves;
  sync_metrics();
  CheckpointRecord line;
  line.step = state.step;
  try {
    const SaveResult result = save_checkpoint(parts.store, save_request(best));
    state.parent_save_id = result.save_id;
    if (is_first()) known_saves.insert(result.save_id);
    if (best) state.best_save_id = result.save_id;
    saved_step = state.step;
    line.path = result.path.string();
    line.seconds = result.seconds;
    line.bytes = static_cast<std::int64_t>(result.bytes);
    parts.log.info(fmt::format("step {}: saved {}", state.step, result.path.string()));
  } catch (const InputError& error) {
    line.failure = error.what();
    if (!must)
      parts.log.error(
          fmt::format("step {}: the checkpoint was not saved, training goes on and tries again at the next one: {}",
                      state.step, error.what()));
    record(line);
    sync_metrics();
    if (must) throw;
    last_save = monotonic_now();
    enter(false);
    return;
  }
  record(line);
  sync_metrics();
  prune_together(line.bytes);
  last_save = monotonic_now();
  enter(false);
}

}  // namespace scaletrain
