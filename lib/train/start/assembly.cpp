#include "train/start/assembly.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <fstream>
#include <limits>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/catalog.h"
#include "checkpoint/hugging_face/hugging_face.h"
#include "checkpoint/load.h"
#include "comm/communicator.h"
#include "config/keys/keys.h"
#include "config/load.h"
#include "infer/stage_memory.h"
#include "nn/init.h"
#include "telemetry/log.h"
#include "telemetry/loss_text.h"
#include "telemetry/metrics.h"
#include "telemetry/metrics_reader.h"
#include "telemetry/progress.h"
#include "telemetry/run_summary.h"
#include "train/rollback.h"
#include "train/run_length.h"
#include "train/start/data_agreement.h"
#include "train/start/data_report.h"
#include "train/start/start_up.h"
#include "train/step/step_runner.h"

namespace scaletrain {

namespace fs = std::filesystem;

namespace {

// Says which bits a run's results depend on.
std::string fingerprint_of(const Config& config, const PhasePlan& plan, const Backend& backend) {
  std::string layout = fmt::format("{}; {}; chunks {}; zero {}", plan.mesh.text(), to_text(plan.schedule_kind),
                                   plan.chunks, config.parallel.zero);
  if (plan.sequence) layout += "; sequence";
  if (plan.stages.size() > 1) {
    std::vector<std::int64_t> layers;
    for (const StageBlocks& stage : plan.stages) layers.push_back(stage.count);
    layout += fmt::format("; layers {}", fmt::join(layers, "+"));
  }
  return fmt::format("{}; micro-batch {}; {}", layout, plan.micro_batch.samples, backend.description());
}

// A start from somebody else's weights: the config's model must be the folder's.
void load_initial_weights(const std::string& folder, const PhasePlan& plan, ParamStore& store) {
  const HuggingFaceModel model(folder);
  const ModelSpec theirs = make_model_spec(model.model_config(), model.model_config().vocab.value_or(plan.model.vocab));
  ModelSpec comparable = plan.model;
  comparable.context = theirs.position == PositionKind::rope ? theirs.context : comparable.context;
  std::string differences;
  const auto compare = [&differences](std::string_view key, const auto& ours, const auto& other) {
    if (!(ours == other))
      differences += fmt::format("\n  model.{}: {} in the config, {} in the folder", key, ours, other);
  };
  compare("layers", comparable.layers, theirs.layers);
  compare("hidden", comparable.hidden, theirs.hidden);
  compare("heads", comparable.heads, theirs.heads);
  compare("kv_heads", comparable.kv_heads, theirs.kv_heads);
  compare("ffn_hidden", comparable.ffn_hidden, theirs.ffn_hidden);
  compare("context", comparable.context, theirs.context);
  compare("vocab", comparable.vocab, theirs.vocab);
  compare("norm", to_text(comparable.norm), to_text(theirs.norm));
  compare("norm_epsilon", comparable.norm_epsilon, theirs.norm_epsilon);
  compare("activation", to_text(comparable.activation), to_text(theirs.activation));
  compare("position", to_text(comparable.position), to_text(theirs.position));
  if (comparable.position == PositionKind::rope) compare("rope_theta", comparable.rope_theta, theirs.rope_theta);
  compare("bias", comparable.bias, theirs.bias);
  compare("tie_embeddings", comparable.tie_embeddings, theirs.tie_embeddings);
  if (!differences.empty())
    throw UserError(fmt::format("model.init.from: {} holds another model:{}\nSet these keys to the folder's values",
                                folder, differences));
  model.load(store);
}

RunPlan plan_of_place(const Config& config, const Tokenizer& tokenizer, const WorkerPlace& place) {
  RunPlan plan = make_run_plan(config, tokenizer.vocab_size(), place.world);
  for (const PhasePlan& phase : plan.phases) {
    if (phase.mesh.world() == place.world) continue;
    throw UserError(fmt::format("parallel: the layout {} needs {} ranks, {} were started", phase.mesh.text(),
                                phase.mesh.world(), place.world));
  }
  return plan;
}

CommunicatorFactory communicators_of(const WorkerPlace& place, const PhasePlan& phase) {
  return place.make_communicators ? place.make_communicators(phase) : CommunicatorFactory();
}

// Everything that lives as long as the training, in order of dependence.
struct Parts {
  // read: what the run has read so far.
  Parts(const WorkerOptions& options, Config run_config, std::vector<MixSource> read, StartUp& start_up);

  bool is_first() const { return rank == Rank(0); }
  // With the plan of the memory beside it.
  InputError out_of_memory(std::string_view when) const;

  Config config;
  Rank rank;
  std::unique_ptr<Tokenizer> tokenizer;
  RunPlan plan;
  const PhasePlan& phase;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
  RankGroups groups;
  Transformer model;
  std::unique_ptr<Optimizer> optimizer;
  ShardLayout layout;
  ProgressPrinter progress;
  Log log;
  std::unique_ptr<TrainingData> data;
  std::vector<std::unique_ptr<ValidationSet>> validation;
  std::vector<SourceContent> contents;  // of the training data, then of the sets
  std::unique_ptr<ParamStore> store;
  std::unique_ptr<StageMemory> memory;

 private:
  LogOptions log_options(const WorkerOptions& options);
  // Takes and returns what opening the data finds out, as claim_text() has it.
  std::string open_data(const std::string& found_by_first, DataCheck check, const std::vector<MixSource>& read);
  void allocate();
};

Parts::Parts(const WorkerOptions& options, Config run_config, std::vector<MixSource> read, StartUp& start_up)
    : config(std::move(run_config)),
      rank(options.place.rank),
      tokenizer(make_tokenizer(config.data.tokenizer, config.model.vocab)),
      plan(plan_of_place(config, *tokenizer, options.place)),
      phase(plan.phase_at(options.start.step)),
      backend(make_cpu_backend({.threads = options.threads, .instruction_set = "auto", .work = options.work})),
      stream(backend->make_stream()),
      groups(make_groups(phase.mesh, rank, phase.group_facts(), communicators_of(options.place, phase))),
      model(phase.model, phase.tensor_part(rank)),
      optimizer(make_optimizer(config.train.optimizer)),
      layout(phase.layout(rank)),
      progress(options.console, progress_options_for(options.console, phase.num_steps, config.log.every)),
      log(log_options(options)) {
  if (options.knows_memory) options.knows_memory(out_of_memory("").what());
  // A restart after a failure need not make the full check of the start again.
  const DataCheck check = options.start.cause.empty() ? config.data.verify : DataCheck::changed;
  start_up.first_on_host([&](const std::string& found) { return open_data(found, check, read); });
  allocate();
}

// Every rank has its file; people see what the first one says, since the others say the same.
LogOptions Parts::log_options(const WorkerOptions& options) {
  LogOptions log_to{.file = rank_log_path(options.paths.folder, rank.value())};
  if (is_first()) log_to.console = [this](std::string_view text) { progress.message(text); };
  return log_to;
}

std::string Parts::open_data(const std::string& found_by_first, DataCheck check, const std::vector<MixSource>& read) {
  DataConfig asked = config.data;
  asked.verify = check;
  const DataClaim found = found_by_first.empty() ? DataClaim() : parse_claim(found_by_first);
  const DataOptions data_options{.vocab = phase.model.vocab,
                                 .context = phase.model.context,
                                 .seed = config.run.seed,
                                 .report = [this](const std::string& text) { log.info(text); },
                                 .known = found.sources,
                                 .read = read,
                                 .opened = [this](SourceContent content) { contents.push_back(std::move(content)); }};
  data = open_training_data(asked, *tokenizer, data_options);
  for (std::size_t i = 0; i < asked.validation.size(); ++i)
    validation.push_back(open_validation_set(asked.validation[i], asked, *tokenizer, data_options,
                                             fmt::format("data.validation.{}", i)));
  return claim_text(make_data_claim(tokenizer->hash(), contents));
}

void Parts::allocate() {
  try {
    ParamStore::Options store_options = phase.store_options(backend->compute_type());
    store_options.groups = &groups;
    store = std::make_unique<ParamStore>(*backend, phase.table, layout, std::move(store_options));
    memory = std::make_unique<StageMemory>(*backend, phase.activations(rank));
  } catch (const std::bad_alloc&) {
    throw out_of_memory("while allocating what the plan needs");
  }
}

InputError Parts::out_of_memory(std::string_view when) const {
  const std::string who =
      phase.mesh.world() == 1 ? "out of memory" : fmt::format("rank {}: out of memory", rank.value());
  return InputError(fmt::format("{}{}{}:\n{}Reduce train.micro_batch, model.context or the model", who,
                                when.empty() ? "" : " ", when, phase.memory(rank, backend->workspace_bytes()).text()));
}

RunState initial_state(Parts& parts, const WorkerOptions& options) {
  RunState state;
  state.generation = options.start.generation;
  if (parts.config.model.init.from) {
    load_initial_weights(*parts.config.model.init.from, parts.phase, *parts.store);
  } else {
    initialise_parameters(*parts.store, parts.config.run.seed, parts.backend->num_threads(), options.work);
  }
  parts.store->values_changed();
  state.warmup = warmup_steps(parts.config, state);
  return state;
}

struct Resumed {
  RunState state;
  bool fingerprint_changed = false;
  std::vector<std::string> paths_before;  // of data.train, as the checkpoint's run had it
};

// A run that is made longer, say, jumps to another place of its schedule.
void tell_learning_rate(const Checkpoint& checkpoint, const Config& now, const RunState& state, Log& log) {
  constexpr double unnoticed = 0.01;
  const Config before = config_of(checkpoint);
  RunState as_before = state;
  as_before.warmup = read_state(checkpoint.manifest(), checkpoint.path().string()).warmup;
  as_before.warmup = warmup_steps(before, as_before);
  const double was = next_learning_rate(before, as_before);
  const double is = next_learning_rate(now, state);
  if (std::abs(is - was) <= unnoticed * std::max(is, was)) return;
  log.warn(
      fmt::format("step {}: the learning rate is {:.3g}, and would be {:.3g} as the checkpoint's run was configured "
                  "({}, train.optimizer.learning_rate and train.lr_schedule make it)",
                  state.step + 1, is, was, length_key(now)));
}

// Nothing: the run has no checkpoint yet. Whoever chose the checkpoint has verified all of it; each of many ranks looks
// at what it reads.
std::unique_ptr<const Checkpoint> open_checkpoint(const WorkerOptions& options) {
  if (!options.start.checkpoint) return nullptr;
  return std::make_unique<const Checkpoint>(*options.start.checkpoint,
                                            options.place.world == 1 ? OpenCheck::all_files : OpenCheck::none);
}

// Before the data is opened, since it says which of the files the run knows.
std::vector<MixSource> sources_read(const Checkpoint* checkpoint) {
  if (checkpoint == nullptr) return {};
  return read_state(checkpoint->manifest(), checkpoint->path().string()).history.sources_read();
}

Resumed resumed_state(Parts& parts, const WorkerOptions& options, const Checkpoint& checkpoint,
                      const std::string& fingerprint) {
  Resumed resumed;
  resumed.state = restore(checkpoint, parts.config, *parts.store, options.work);
  resumed.state.generation = options.start.generation;
  if (!options.start.asked.empty()) resumed.state.branch = {checkpoint.manifest().save_id, options.start.asked};
  tell_learning_rate(checkpoint, parts.config, resumed.state, parts.log);
  for (const SourceConfig& source : config_of(checkpoint).data.train) resumed.paths_before.push_back(source.path);
  const std::string& before = checkpoint.manifest().fingerprint;
  resumed.fingerprint_changed = before != fingerprint;
  if (resumed.fingerprint_changed)
    parts.log.warn(
        fmt::format("resuming on another layout, processor or build: losses agree to rounding, not to the bit.\n"
                    "  before: {}\n  now:    {}",
                    before, fingerprint));
  return resumed;
}

LayoutRecord layout_of(const Parts& parts) {
  const PhasePlan& phase = parts.phase;
  return {.world = phase.mesh.world(),
          .data = phase.mesh.degree(Axis::data),
          .tensor = phase.mesh.degree(Axis::tensor),
          .pipeline = phase.mesh.degree(Axis::pipeline),
          .sequence = phase.sequence,
          .schedule = std::string(to_text(phase.schedule_kind)),
          .chunks = phase.chunks,
          .zero = parts.config.parallel.zero,
          .micro_batch = phase.micro_batch.samples,
          .micro_batches = phase.num_micro_batches,
          .threads = parts.backend->num_threads()};
}

void write_opening(MetricsWriter& metrics, const Parts& parts, const WorkerOptions& options, const RunState& state,
                   bool restarted, bool fingerprint_changed, std::vector<SourceRecord> sources) {
  const LayoutRecord layout = layout_of(parts);
  if (restarted) {
    RestartRecord record;
    record.step = state.step;
    record.generation = state.generation;
    record.checkpoint = options.start.checkpoint ? options.start.checkpoint->string() : "";
    record.fingerprint_changed = fingerprint_changed;
    record.cause = options.start.cause.empty() ? "the run was started again" : options.start.cause;
    record.wall_time = wall_clock_text();
    record.layout = layout;
    record.sources = std::move(sources);
    metrics.write(record);
    return;
  }
  StartRecord record;
  record.world = parts.phase.mesh.world();
  record.parameters = parts.phase.table.num_parameters();
  record.seed = parts.config.run.seed;
  record.version = options.version;
  record.wall_time = wall_clock_text();
  record.layout = layout;
  record.sources = std::move(sources);
  metrics.write(record);
}

// Whether training ever began here: a start that failed before leaves an `end` line alone.
bool has_begun(const fs::path& metrics) {
  constexpr std::string_view end_line = R"({"kind":"end")";
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);)
    if (!line.starts_with(end_line)) return true;
  return false;
}

// What the run reads from here on: what data.train says now, each source from where the run left it.
void settle_data(Parts& parts, Resumed& begin) {
  ConsumptionHistory& history = begin.state.history;
  const std::vector<MixSource> before = history.sources_read();
  const bool is_same =
      history.continue_with(parts.data->description(), parts.phase.model.context, parts.phase.global_batch);
  parts.data->enter(history.mix());
  if (is_same) return;
  for (const std::string& line : joined_lines(history.mix(), before, parts.contents)) parts.log.info(line);
  for (const std::string& line : change_lines(history.mix(), parts.contents, begin.paths_before)) parts.log.warn(line);
}

// A mix whose sources all have an epoch cap ends: better refused now than when it runs out.
void check_samples_suffice(const Parts& parts, const RunState& state) {
  const std::optional<std::int64_t> all = parts.data->mixture().num_samples();
  if (!all) return;
  const std::int64_t steps = last_step(parts.config, state) - state.step;
  const std::int64_t needed = checked_mul(steps, parts.phase.global_batch);
  const std::int64_t left = std::max<std::int64_t>(0, *all - state.history.next_sample());
  if (needed <= left) return;
  throw UserError(
      fmt::format("data.train: the {} steps from here on need {} samples and the epoch caps leave {}; raise "
                  "data.train[].epochs or reduce {}",
                  steps, needed, left, length_key(parts.config)));
}

// What the run reads from here to its end.
std::vector<SourceRecord> tell_sources(Parts& parts, const RunState& state) {
  const std::int64_t steps = std::max<std::int64_t>(0, last_step(parts.config, state) - state.step);
  std::vector<SourceRecord> sources =
      source_records(*parts.data, parts.contents, state.history, checked_mul(steps, parts.phase.global_batch));
  for (const std::string& line : source_lines(sources, state.history.samples_consumed() > 0)) parts.log.info(line);
  return sources;
}

std::string outcome_text(TrainOutcome outcome) {
  switch (outcome) {
    case TrainOutcome::finished:
      return "finished";
    case TrainOutcome::stopped_early:
      return "stopped early";
    case TrainOutcome::interrupted:
      return "interrupted";
  }
  return "";
}

// What a run has before its first step.
struct Started {
  std::unique_ptr<Parts> parts;
  std::unique_ptr<MetricsWriter> metrics;  // rank 0's
  std::string fingerprint;
  RunState state;
  double peak_flops = 0.0;  // of all ranks
  bool has_told_failure = false;
};

// What the ranks of the start before this one went by, if the metrics' last step says it; else 0. A restart is to be
// quick, and is on the same machines unless ranks may be spread anew.
double peak_before(const Parts& parts, const WorkerOptions& options) {
  if (options.start.cause.empty() || parts.config.supervise.elastic_min_data) return 0.0;
  double peak = 0.0;
  try {
    const MetricsTail tail = parts.is_first() ? read_metrics_tail(options.paths.metrics(), 0) : MetricsTail();
    if (tail.mfu > 0.0 && tail.tokens_per_second > 0.0)
      peak = model_flops_per_token(parts.phase.model) * tail.tokens_per_second / tail.mfu;
  } catch (const InputError&) {  // then it is measured
  }
  sum_over_world(parts.groups, {&peak, 1});
  return std::isfinite(peak) ? peak : 0.0;
}

// The ranks measure at the same time, since they share memory and heat. The best of a rank's repetitions had its
// threads' processors to itself, which it may have to share.
double measure_peak(Parts& parts, double seconds, double processors_per_thread) {
  if (seconds <= 0.0) return 0.0;
  double peak = std::numeric_limits<double>::quiet_NaN();
  try {
    peak = calibrate_matmul(*parts.backend, *parts.stream, seconds) * std::min(1.0, processors_per_thread);
  } catch (const std::exception& error) {
    // No memory for it, say: a share of peak is not worth a run. The others learn by the sum that it is not known.
    parts.log.warn(fmt::format("the processor's peak could not be measured, mfu is not known: {}", error.what()));
  }
  sum_over_world(parts.groups, {&peak, 1});
  return std::isfinite(peak) ? peak : 0.0;
}

// What ranks train on is theirs to open, each from its host.
void refuse_other_data(const Parts& parts, const WorkerOptions& options, StartUp& start_up) {
  if (options.place.rendezvous == nullptr) return;
  DataClaim claim = make_data_claim(parts.tokenizer->hash(), parts.contents);
  if (const auto& from = parts.config.model.init.from; from && !options.start.checkpoint)
    claim.sources.push_back(content_of_weights(*from));
  agree_on_data(start_up, parts.rank, claim);
}

// What earlier starts came to, for the progress line and the end. restarted_at: the step that this start goes on from.
void continue_summary(Parts& parts, const WorkerOptions& options, std::optional<std::int64_t> restarted_at) {
  if (!restarted_at) return;
  RunSummary summary;
  try {
    summary = summarize_metrics(options.paths.metrics());
  } catch (const InputError& error) {
    parts.log.warn(fmt::format("what the run came to before is not known: {}", error.what()));
  }
  summary.add_restart(*restarted_at);
  parts.progress.begin(std::move(summary));
}

// Fills `run` as it goes, so that what fails on the way is told before it is torn down.
void start_run(const WorkerOptions& options, StartUp& start_up, Started& run) {
  if (options.place.world > 1 && options.hooks.entered) options.hooks.entered(options.start.step, true);
  const fs::path config_file = options.paths.config();
  Config config = parse_resolved_config(read_text_file(config_file, 1u << 20), config_file.string());
  if (options.data_degree) config.parallel.data = options.data_degree;
  const std::unique_ptr<const Checkpoint> checkpoint = open_checkpoint(options);
  run.parts = std::make_unique<Parts>(options, std::move(config), sources_read(checkpoint.get()), start_up);
  Parts& parts = *run.parts;
  refuse_other_data(parts, options, start_up);
  run.fingerprint = fingerprint_of(parts.config, parts.phase, *parts.backend);
  const bool restarted = options.start.checkpoint || options.start.generation > 0 || has_begun(options.paths.metrics());
  if (parts.is_first())
    run.metrics = std::make_unique<MetricsWriter>(
        options.paths.metrics(), [&parts](const std::string& text) { parts.log.error(text); },
        options.hooks.may_commit);
  Resumed begin;
  if (checkpoint) {
    begin = resumed_state(parts, options, *checkpoint, run.fingerprint);
  } else {
    begin.state = initial_state(parts, options);
  }
  settle_data(parts, begin);
  parts.plan.phases.back().num_steps = last_step(parts.config, begin.state) - parts.phase.first_step;
  parts.progress.set_total_steps(last_step(parts.config, begin.state));
  check_samples_suffice(parts, begin.state);
  start_up.wait_for_all();
  run.peak_flops = peak_before(parts, options);
  if (run.metrics) continue_summary(parts, options, restarted ? std::optional(begin.state.step) : std::nullopt);
  std::vector<SourceRecord> sources = tell_sources(parts, begin.state);
  if (run.metrics)
    write_opening(*run.metrics, parts, options, begin.state, restarted, begin.fingerprint_changed, std::move(sources));
  parts.log.info(fmt::format("training from step {} on {}", begin.state.step, layout_text(layout_of(parts))));
  run.state = std::move(begin.state);
  if (run.peak_flops <= 0.0)
    run.peak_flops = measure_peak(parts, options.calibration_seconds, options.place.processors_per_thread);
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

// What the run has come to, over all of its starts.
void tell_outcome(Parts& parts, TrainOutcome outcome, std::int64_t step) {
  const RunSummary summary = parts.progress.summary();
  std::string text = fmt::format("{} at step {}", outcome_text(outcome), step);
  if (const auto lowest = summary.lowest_loss())
    text += fmt::format("; loss {}, the lowest {} at step {}", loss_text(summary.loss()), loss_text(lowest->loss),
                        lowest->step);
  parts.log.info(text);
  for (const RunSummary::ValidationLoss& set : summary.validation())
    parts.log.info(fmt::format("validation/{}/loss {}, the lowest {} at step {}", set.dataset, loss_text(set.last.loss),
                               loss_text(set.lowest.loss), set.lowest.step));
  const std::int64_t restarts = summary.restarts();
  parts.log.info(
      fmt::format("{} tokens in {} of training, {}", grouped_digits(static_cast<std::uint64_t>(summary.tokens())),
                  duration_text(summary.elapsed_seconds()),
                  restarts == 0 ? "no restart" : fmt::format("{} restart{}", restarts, restarts == 1 ? "" : "s")));
}

ExitCode train(const WorkerOptions& options, Started& run) {
  Parts& parts = *run.parts;
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
                   .paths = options.paths,
                   .metrics = run.metrics.get(),
                   .progress = parts.progress,
                   .log = parts.log,
                   .tokenizer_files = parts.tokenizer->files(),
                   .fingerprint = run.fingerprint,
                   .layout = layout_of(parts),
                   .work = options.work,
                   .peak_flops = run.peak_flops,
                   .elapsed_before = parts.progress.summary().elapsed_seconds(),
                   .hooks = options.hooks},
                  std::move(run.state));
  const TrainOutcome outcome = run_trainer(options, run, trainer);
  const std::int64_t step = trainer.state().step;
  // Ranks that leave may do so to go on with others at once: whoever supervises them knows whether the run has ended.
  if (run.metrics && outcome != TrainOutcome::interrupted) {
    EndRecord end;
    end.step = step;
    end.reason = outcome_text(outcome);
    end.wall_time = wall_clock_text();
    parts.progress.summary().fill(end);
    run.metrics->write(end);
  }
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

void check_initial_weights(const Config& config) {
  const auto& from = config.model.init.from;
  if (!from || path_exists(*from) || !list_checkpoints(RunPaths(config.run.directory).checkpoints()).empty()) return;
  throw UserError(
      fmt::format("model.init.from: no such folder: {}; a run that has a checkpoint no longer needs it, this one has "
                  "none",
                  *from));
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
