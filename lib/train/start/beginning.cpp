#include "train/start/beginning.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "base/text.h"
#include "config/batch_ramp.h"
#include "config/keys/keys.h"
#include "nn/init.h"
#include "optim/adaptive_batch.h"
#include "optim/gradient_noise.h"
#include "train/data/data_report.h"
#include "train/data/phase_reads.h"
#include "train/early_stop.h"
#include "train/evaluation.h"
#include "train/rollback.h"
#include "train/run_length.h"
#include "train/start/initial_weights.h"

namespace scaletrain {

namespace {

// Rank 0 looks at all of its content; that the others have the same is agreed on by samples (data_agreement.h).
BaseModel base_of_adapters(WorkerParts& parts, const WorkerOptions& options, const std::optional<BaseModel>& known) {
  return load_base(parts.config, parts.phase.model, known, *parts.store, parts.is_first() ? host_threads(options) : 0,
                   options.work);
}

RunState initial_state(WorkerParts& parts, const WorkerOptions& options) {
  RunState state;
  state.generation = options.start.generation;
  if (parts.config.finetune.lora) {
    state.base = base_of_adapters(parts, options, std::nullopt);
    if (const auto& from = parts.config.finetune.lora->from) {
      load_initial_adapters(*from, *parts.store, *parts.stream);
    } else {
      initialise_adapters(*parts.store, *parts.stream, parts.config.run.seed, host_threads(options), options.work);
    }
  } else if (parts.config.model.init.from) {
    const std::string grown = load_initial_weights(parts.config.model, parts.phase.model, *parts.store, *parts.stream);
    if (!grown.empty()) parts.log.info(grown);
  } else {
    initialise_parameters(*parts.store, *parts.stream, parts.config.run.seed, host_threads(options), options.work);
  }
  state.loss_scale = continue_loss_scale(std::nullopt, parts.config.precision);
  state.batch = continue_batch(std::nullopt, parts.config.train);
  state.gradient_noise = continue_gradient_noise(std::nullopt, parts.config.log.gradient_noise);
  return state;
}

// A run that is made longer, say, jumps to another place of its schedule.
void tell_learning_rate(const Checkpoint& checkpoint, const Config& now, const RunState& state, Log& log) {
  constexpr double unnoticed = 0.01;
  const Config before = config_of(checkpoint);
  RunState as_before = state;
  const RunState saved = read_state(checkpoint.manifest(), checkpoint.path().string());
  as_before.batch = saved.batch;  // which the bounds of this config may have changed
  as_before.warmup = saved.warmup;
  as_before.warmup = warmup_steps(before, as_before);
  const double was = next_learning_rate(before, as_before);
  const double is = next_learning_rate(now, state);
  if (std::abs(is - was) <= unnoticed * std::max(is, was)) return;
  const bool scales = before.train.optimizer.scale_with_batch || now.train.optimizer.scale_with_batch;
  log.warn(
      fmt::format("step {}: the learning rate is {:.3g}, and would be {:.3g} as the checkpoint's run was configured "
                  "({}, train.optimizer.learning_rate{} and train.lr_schedule make it)",
                  state.step + 1, is, was, length_key(now),
                  scales ? ", train.optimizer.scale_with_batch, train.global_batch" : ""));
}

Beginning resumed_state(WorkerParts& parts, const WorkerOptions& options, const Checkpoint& checkpoint,
                        const std::string& fingerprint) {
  Beginning resumed;
  std::optional<BaseModel> base;
  if (parts.config.finetune.lora) base = base_of_adapters(parts, options, checkpoint.manifest().base);
  resumed.state = restore(checkpoint, parts.config, *parts.store, *parts.stream, options.work);
  resumed.state.base = base;
  resumed.state.generation = options.start.generation;
  if (!options.start.asked.empty()) resumed.state.branch = {checkpoint.manifest().save_id, options.start.asked};
  tell_learning_rate(checkpoint, parts.config, resumed.state, parts.log);
  resumed.data_before = config_of(checkpoint).data;
  const std::string& before = checkpoint.manifest().fingerprint;
  resumed.fingerprint_changed = before != fingerprint;
  if (resumed.fingerprint_changed)
    parts.log.warn(
        fmt::format("resuming on another layout, processor or build: losses agree to rounding, not to the bit.\n"
                    "  before: {}\n  now:    {}",
                    before, fingerprint));
  return resumed;
}

// Of other data than the checkpoint's: what people may not expect.
void tell_change(WorkerParts& parts, const Beginning& begin, const std::vector<MixSource>& before) {
  for (const std::string& line : joined_lines(begin.state.history.mix(), before, parts.contents)) parts.log.info(line);
  const DataChange change{begin.data_before, parts.config.data};
  for (const std::string& line : change_lines(begin.state.history.mix(), before, parts.contents, change))
    parts.log.warn(line);
}

}  // namespace

std::unique_ptr<const Checkpoint> open_checkpoint(const WorkerOptions& options) {
  if (!options.start.checkpoint) return nullptr;
  return std::make_unique<const Checkpoint>(*options.start.checkpoint,
                                            options.place.world == 1 ? OpenCheck::all_files : OpenCheck::none);
}

std::vector<MixSource> sources_read(const Checkpoint* checkpoint) {
  if (checkpoint == nullptr) return {};
  return read_state(checkpoint->manifest(), checkpoint->path().string()).history.sources_read();
}

Beginning begin_from(const Checkpoint* checkpoint, WorkerParts& parts, const WorkerOptions& options,
                     const std::string& fingerprint) {
  if (checkpoint != nullptr) return resumed_state(parts, options, *checkpoint, fingerprint);
  Beginning begin;
  begin.state = initial_state(parts, options);
  return begin;
}

void settle_data(WorkerParts& parts, Beginning& begin) {
  ConsumptionHistory& history = begin.state.history;
  const std::vector<MixSource> before = history.sources_read();
  // What the last step read is what the config says of it, unless the data has changed. A phase that begins with the
  // next one is no change.
  const bool is_same = has_entered(parts.config, begin.state.step, *parts.data, history) ||
                       enter_phase(parts.config, train_from(parts.config, begin.state),
                                   std::max<std::int64_t>(begin.state.step, 1) - 1, *parts.data, history);
  // Of a run in epochs both are known by now alone.
  check_warmup(parts.config, begin.state);
  if (!begin.state.warmup) begin.state.warmup = warmup_steps(parts.config, begin.state);
  if (!is_same) tell_change(parts, begin, before);
  enter_phase(parts.config, train_from(parts.config, begin.state), begin.state.step, *parts.data, history);
}

void settle_early_stop(WorkerParts& parts, RunState& state) {
  if (!state.early_stop.stopped) return;
  std::optional<std::string> afresh;
  if (const ValidationConfig* const watched = watched_set(parts.config)) {
    const auto& set = *parts.validation[static_cast<std::size_t>(watched - parts.config.data.validation.data())];
    afresh = measure_set(set, parts.config, state);
  } else if (const TaskConfig* const task = watched_task(parts.config)) {
    const auto& watched_task = *parts.tasks[static_cast<std::size_t>(task - parts.config.evaluate.tasks.data())];
    afresh = measure_task(watched_task, parts.config, state);
  }
  if (afresh) parts.log.warn(*afresh);
}

std::vector<SourceRecord> tell_sources(WorkerParts& parts, const RunState& state) {
  const std::int64_t steps = std::max<std::int64_t>(0, last_step(parts.config, state) - state.step);
  std::vector<SourceRecord> sources = source_records(*parts.data, parts.contents, state.history,
                                                     samples_from(train_from(parts.config, state), state.step, steps));
  // The mix of this phase says nothing of the others.
  const std::vector<PhaseReads> reads = phase_reads(*parts.data, parts.config, state);
  if (!reads.empty()) end_with(sources, reads.back().epochs);
  for (const std::string& line : source_lines(sources, state.history.samples_consumed() > 0)) parts.log.info(line);
  if (parts.config.train.epochs) {
    std::int64_t samples = 0;
    for (const SourceRecord& source : sources) samples = checked_add(samples, source.samples);
    parts.log.info(fmt::format("train.epochs: {} times {} make {} of {}", *parts.config.train.epochs,
                               grouped_count(static_cast<std::uint64_t>(samples), "sample"),
                               grouped_count(static_cast<std::uint64_t>(state.step + steps), "step"),
                               grouped_count(static_cast<std::uint64_t>(parts.phase.global_batch), "sample")));
  }
  return sources;
}

}  // namespace scaletrain
