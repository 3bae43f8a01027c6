#include "train/start/assembly.h"

#include <fmt/format.h>

#include <exception>
#include <memory>
#include <new>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/process/memory_limit.h"
#include "config/keys/keys.h"
#include "config/load.h"
#include "telemetry/event_file.h"
#include "telemetry/metrics.h"
#include "train/data/data_agreement.h"
#include "train/data/data_files.h"
#include "train/run_length.h"
#include "train/start/beginning.h"
#include "train/start/carried_files.h"
#include "train/start/peak.h"
#include "train/start/run_records.h"
#include "train/start/start_up.h"
#include "train/start/worker_parts.h"
#include "train/step/step_runner.h"

namespace scaletrain {

namespace fs = std::filesystem;

namespace {

// What a run has before its first step.
struct Started {
  std::unique_ptr<WorkerParts> parts;
  std::unique_ptr<MetricsWriter> metrics;  // rank 0's
  std::string fingerprint;
  RunState state;
  DevicePeak peak{};
  bool has_told_failure = false;
};

// What ranks train on is theirs to open, each from its host.
void refuse_other_data(const WorkerParts& parts, const WorkerOptions& options, StartUp& start_up) {
  if (options.place.rendezvous == nullptr) return;
  DataClaim claim = make_data_claim(parts.tokenizer->hash(), parts.contents);
  if (const auto& from = parts.config.model.init.from;
      from && (!options.start.checkpoint || parts.config.finetune.lora))
    claim.sources.push_back(content_of_weights("model.init.from", *from));
  if (const auto& lora = parts.config.finetune.lora; lora && lora->from && !options.start.checkpoint)
    claim.sources.push_back(content_of_weights("finetune.lora.from", *lora->from));
  for (std::size_t i = 0; i < parts.tasks.size(); ++i)
    claim.sources.push_back(
        content_of_task(fmt::format("evaluate.tasks.{}", i), parts.config.evaluate.tasks[i].path, *parts.tasks[i]));
  agree_on_data(start_up, parts.rank, claim);
}

// Before the data is opened: what an earlier start has noted says nothing of this one. What it was, if it can be read.
std::vector<SourceFiles> forget_data_files(const WorkerOptions& options) {
  std::vector<SourceFiles> before;
  if (options.place.rank != Rank(0) || !options.start.cause.empty()) return before;
  try {
    before = read_data_files(options.paths.data_files());
  } catch (const InputError&) {  // nothing to compare with
  }
  std::error_code ignored;
  fs::remove(options.paths.data_files(), ignored);
  return before;
}

// Of the files that restarts after a failure keep to: where somebody starts the run, and where a worker that failed
// before it had opened its data has left no note.
// before: what the start before this one has noted.
void note_data_files(WorkerParts& parts, const WorkerOptions& options, const std::vector<SourceFiles>& before) {
  if (!parts.is_first() || !parts.files_of_start.empty()) return;
  const std::vector<SourceFiles> files =
      files_of_folders(parts.contents, [&parts](const std::string& text) { parts.log.warn(text); });
  for (const std::string& line : changed_sets(before, files, parts.contents)) parts.log.warn(line);
  try {
    if (!files.empty()) write_data_files(options.paths.data_files(), files);
  } catch (const InputError& error) {
    parts.log.warn(
        fmt::format("a restart after a failure will read files that come to the data's folders: {}", error.what()));
  }
}

Config config_of_run(const WorkerOptions& options) {
  const fs::path file = options.paths.config();
  Config config = parse_resolved_config(read_text_file(file, 1u << 20), file.string());
  if (options.data_degree) config.parallel.data = options.data_degree;
  return config;
}

// How the steps are computed, as far as the layout does not say it.
std::string compute_text(const WorkerParts& parts, const RunState& state) {
  const DType compute = parts.phase.compute;
  std::string text = ", in ";
  text += parts.backend->device() ? to_text(parts.config.compute_precision()) : cpu_precision_text(compute);
  if (compute == DType::f16) text += ", " + loss_scale_text(parts.config.precision, state.loss_scale);
  if (parts.phase.reduce && parts.phase.mesh.degree(Axis::data) > 1)
    text += fmt::format(", gradients between replicas in {}", to_text(parts.config.precision.reduce));
  if (parts.phase.recompute != RecomputeKind::none)
    text += fmt::format(", train.recompute {}", to_text(parts.phase.recompute));
  const TrainConfig& train = parts.config.train;
  if (train.label_smoothing > 0) text += fmt::format(", train.label_smoothing {}", train.label_smoothing);
  if (train.z_loss > 0) text += fmt::format(", train.z_loss {}", train.z_loss);
  if (train.ema) text += fmt::format(", an average of the weights (train.ema.decay {})", train.ema->decay);
  if (const auto& noise = parts.config.log.gradient_noise)
    text += fmt::format(", the gradient noise scale measured every {}", counted(noise->every, "step"));
  if (parts.phase.offload)
    text += fmt::format(", train.optimizer.offload {}", to_text(parts.config.train.optimizer.offload));
  if (parts.config.run.cuda_graphs) text += ", by CUDA graphs";
  return text;
}

// What rank 0 itself has nothing of: ranks that reach each other and not it, on another host or under other rules.
void tell_notice_of_another(WorkerParts& parts, StartUp& start_up) {
  const std::string notice = parts.has_connection_notice ? "" : start_up.told_by_another();
  if (!notice.empty()) parts.log.warn(notice);
}

std::unique_ptr<MetricsWriter> open_metrics(WorkerParts& parts, const WorkerOptions& options) {
  const auto report = [&parts](const std::string& text) { parts.log.error(text); };
  auto metrics = std::make_unique<MetricsWriter>(options.paths.metrics(), report, options.hooks.may_commit);
  if (parts.config.log.tensorboard)
    metrics->add_events(std::make_unique<EventWriter>(options.paths.tensorboard(), report));
  return metrics;
}

// Fills `run` as it goes, so that what fails on the way is told before it is torn down.
void start_run(const WorkerOptions& options, StartUp& start_up, Started& run) {
  if (options.place.world > 1 && options.hooks.entered) options.hooks.entered(options.start.step, true);
  Config config = config_of_run(options);
  const std::unique_ptr<const Checkpoint> checkpoint = open_checkpoint(options);
  const std::vector<SourceFiles> files_before = forget_data_files(options);
  run.parts = std::make_unique<WorkerParts>(options, std::move(config), sources_read(checkpoint.get()), start_up);
  WorkerParts& parts = *run.parts;
  refuse_other_data(parts, options, start_up);
  note_data_files(parts, options, files_before);
  run.fingerprint = fingerprint_of(parts);
  const bool restarted = options.start.checkpoint || options.start.generation > 0 || has_begun(options.paths.metrics());
  if (parts.is_first()) run.metrics = open_metrics(parts, options);
  Beginning begin = begin_from(checkpoint.get(), parts, options, run.fingerprint);
  settle_data(parts, begin);
  settle_early_stop(parts, begin.state);
  parts.plan.phases.back().num_steps = last_step(parts.config, begin.state) - parts.phase.first_step;
  parts.progress.set_total_steps(last_step(parts.config, begin.state));
  const std::string shortage = data_shortage(*parts.data, parts.config, begin.state, options.looked_up_samples);
  if (!shortage.empty()) throw UserError(shortage);
  start_up.wait_for_all();
  tell_notice_of_another(parts, start_up);
  run.peak = known_peak(parts, options);
  if (run.metrics) continue_summary(parts, options, restarted ? std::optional(begin.state.step) : std::nullopt);
  std::vector<SourceRecord> sources = tell_sources(parts, begin.state);
  if (run.metrics)
    write_opening(*run.metrics, parts, options, begin, device_of(parts, run.peak.flops), restarted, std::move(sources));
  const auto device = parts.backend->device();
  parts.log.info(fmt::format("training from step {} on {}{}", begin.state.step,
                             layout_text(layout_of(parts), device ? device->name : std::string(), parts.num_gpus),
                             compute_text(parts, begin.state)));
  run.state = std::move(begin.state);
  if (run.peak.flops <= 0.0)
    run.peak = measure_peak(parts, options.calibration_seconds, options.place.processors_per_thread);
}

// In a handler. First the word, then the end: peers that lose this rank say so at once, and it is not they who know
// why. And the store is destroyed only when nothing under way can hold it up.
void tell_failure(const WorkerOptions& options, Started& run) {
  if (std::exchange(run.has_told_failure, true)) return;
  try {
    if (options.failed) options.failed(std::current_exception());
  } catch (const std::exception&) {  // no memory for the words: whoever turns the failure into an exit code has some
  }
  if (run.parts) run.parts->groups.abort();
}

// Of the little that a step allocates something may be missing too: the plan leaves out what others on the host use.
TrainOutcome run_within_memory(const Started& run, Trainer& trainer) {
  try {
    return trainer.run();
  } catch (const std::bad_alloc&) {
    throw run.parts->out_of_memory("while training");
  }
}

// A failure is told while the trainer is still there, whose end waits for the storage if a save is under way.
TrainOutcome run_trainer(const WorkerOptions& options, Started& run, Trainer& trainer) {
  try {
    return run_within_memory(run, trainer);
  } catch (const std::exception& error) {
    // Whoever hears of the failure ends this process, and the save with it.
    if (options.place.world == 1) trainer.finish_save(error.what());
    tell_failure(options, run);
    throw;
  }
}

// Rank 0 stores them.
std::vector<TokenizerFile> files_to_carry(const WorkerParts& parts, const WorkerOptions& options) {
  if (!parts.is_first()) return {};
  return carried_files(parts.config, *parts.tokenizer, options.start.checkpoint);
}

ExitCode train(const WorkerOptions& options, Started& run) {
  WorkerParts& parts = *run.parts;
  StepRunner runner({.plan = parts.phase,
                     .rank = parts.rank,
                     .backend = *parts.backend,
                     .stream = *parts.stream,
                     .model = parts.model,
                     .store = *parts.store,
                     .optimizer = *parts.optimizer,
                     .memory = *parts.memory,
                     .groups = parts.groups,
                     .work = options.work});
  Trainer trainer({.config = parts.config,
                   .plan = parts.phase,
                   .stream = *parts.stream,
                   .store = *parts.store,
                   .runner = runner,
                   .rank = parts.rank,
                   .rendezvous = options.place.rendezvous,
                   .background_rendezvous = options.place.background_rendezvous,
                   .data = *parts.data,
                   .validation = parts.validation,
                   .tasks = parts.tasks,
                   .paths = options.paths,
                   .metrics = run.metrics.get(),
                   .progress = parts.progress,
                   .log = parts.log,
                   .tokenizer_files = files_to_carry(parts, options),
                   .fingerprint = run.fingerprint,
                   .layout = layout_of(parts),
                   .device = device_of(parts, run.peak.flops),
                   .work = options.work,
                   .peak = run.peak,
                   .elapsed_before = parts.progress.summary().elapsed_seconds(),
                   .hooks = options.hooks},
                  std::move(run.state));
  const TrainOutcome outcome = run_trainer(options, run, trainer);
  const std::int64_t step = trainer.state().step;
  // Ranks that leave may do so to go on with others at once: whoever supervises them knows whether the run has ended.
  if (run.metrics && outcome != TrainOutcome::interrupted) write_end(*run.metrics, parts, outcome, step);
  if (run.metrics) run.metrics->sync();
  parts.progress.finish();
  tell_outcome(parts, outcome, step);
  return outcome == TrainOutcome::interrupted ? ExitCode::interrupted : ExitCode::finished;
}

// What the trainer itself allocates may be missing as well.
ExitCode train_within_memory(const WorkerOptions& options, Started& run) {
  try {
    return train(options, run);
  } catch (const std::bad_alloc&) {
    throw run.parts->out_of_memory("while training");
  }
}

}  // namespace

RunPlan plan_for(const Config& config, std::optional<std::int64_t> world) {
  const auto tokenizer = make_tokenizer(config.data.tokenizer, config.model.vocab);
  return make_run_plan(config, tokenizer->vocab_size(), world);
}

std::size_t workspace_of_rank(const PhasePlan& phase, int threads) {
  return is_host_accessible(phase.space) ? cpu_workspace_bytes(threads, phase.compute) : cuda_workspace_bytes;
}

std::string early_memory_words(const WorkerOptions& options) {
  const Config config = config_of_run(options);
  PhasePlan phase = plan_for(config, options.place.world).phases.front();
  phase.may_be_direct = phase.may_be_direct && options.place.gpus.is_own();
  return out_of_memory_text(phase, options.place.rank, workspace_of_rank(phase, options.threads), "",
                            MemoryLimitText().view());
}

ExitCode train_run(const WorkerOptions& options) {
  StartUp start_up(options.place, options.start.generation);
  Started run;
  bool is_started = false;
  try {
    start_run(options, start_up, run);
    is_started = true;
    return train_within_memory(options, run);
  } catch (const std::exception& error) {
    if (!is_started) start_up.failed(error.what());
    tell_failure(options, run);
    throw;
  }
}

}  // namespace scaletrain
