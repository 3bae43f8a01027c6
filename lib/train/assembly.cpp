#include "train/assembly.h"

#include <fmt/format.h>

#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "checkpoint/catalog.h"
#include "checkpoint/hugging_face.h"
#include "checkpoint/load.h"
#include "comm/communicator.h"
#include "config/keys.h"
#include "config/load.h"
#include "nn/init.h"
#include "telemetry/log.h"
#include "telemetry/metrics.h"
#include "telemetry/progress.h"

namespace scaletrain {

namespace fs = std::filesystem;

namespace {

// Says which bits a run's results depend on.
std::string fingerprint_of(const Config& config, const PhasePlan& plan, const Backend& backend) {
  return fmt::format("{}; {}; chunks {}; zero {}; micro-batch {}; {}", plan.mesh.text(), to_text(plan.schedule_kind),
                     plan.chunks, config.parallel.zero, plan.micro_batch.samples, backend.description());
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

// Everything that lives as long as the training, in order of dependence.
struct Parts {
  Parts(const WorkerOptions& options, Config run_config);

  Config config;
  std::unique_ptr<Tokenizer> tokenizer;
  RunPlan plan;
  const PhasePlan& phase;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
  Transformer model;
  std::unique_ptr<Optimizer> optimizer;
  ShardLayout layout;
  ProgressPrinter progress;
  Log log;
  std::unique_ptr<TrainingData> data;
  std::vector<std::unique_ptr<ValidationSet>> validation;
  std::unique_ptr<ParamStore> store;
  std::unique_ptr<StageMemory> memory;

 private:
  void open_data();
  void allocate();
};

Parts::Parts(const WorkerOptions& options, Config run_config)
    : config(std::move(run_config)),
      tokenizer(make_tokenizer(config.data.tokenizer, config.model.vocab)),
      plan(make_run_plan(config, tokenizer->vocab_size(), std::nullopt)),
      phase(plan.phase_at(options.start.step)),
      backend(make_cpu_backend({.threads = options.threads, .instruction_set = "auto"})),
      stream(backend->make_stream()),
      model(phase.model),
      optimizer(make_optimizer(config.train.optimizer)),
      layout(phase.layout(Rank(0))),
      progress(options.console, progress_options_for(options.console, phase.num_steps, config.log.every)),
      log({.file = rank_log_path(options.paths.folder, 0),
           .standard_error = false,
           .console = [this](std::string_view text) { progress.message(text); }}) {
  open_data();
  allocate();
}

void Parts::open_data() {
  const DataOptions data_options{.vocab = phase.model.vocab,
                                 .context = phase.model.context,
                                 .seed = config.run.seed,
                                 .report = [this](const std::string& text) { log.info(text); }};
  data = open_training_data(config.data, *tokenizer, data_options);
  for (std::size_t i = 0; i < config.data.validation.size(); ++i)
    validation.push_back(open_validation_set(config.data.validation[i], config.data, *tokenizer, data_options,
                                             fmt::format("data.validation.{}", i)));
}

void Parts::allocate() {
  try {
    store = std::make_unique<ParamStore>(
        *backend, phase.table, layout,
        ParamStore::Options{.slot_names = {optimizer->slot_names().begin(), optimizer->slot_names().end()},
                            .gradients = true,
                            .dtype = backend->compute_type()});
    memory = std::make_unique<StageMemory>(*backend, phase.activations(Rank(0)), phase.micro_batch, phase.model.hidden);
  } catch (const std::bad_alloc&) {
    throw InputError(
        fmt::format("out of memory while allocating what the plan needs:\n{}Reduce train.micro_batch, "
                    "model.context or the model",
                    phase.memory(Rank(0), backend->workspace_bytes()).text()));
  }
}

RunState initial_state(Parts& parts, const WorkerOptions& options) {
  RunState state;
  state.generation = options.start.generation;
  if (parts.config.model.init.from) {
    load_initial_weights(*parts.config.model.init.from, parts.phase, *parts.store);
  } else {
    initialise_parameters(*parts.store, parts.config.run.seed, parts.backend->num_threads());
  }
  parts.store->values_changed();
  return state;
}

struct Resumed {
  RunState state;
  bool fingerprint_changed = false;
};

Resumed resumed_state(Parts& parts, const WorkerOptions& options, const std::string& fingerprint) {
  const Checkpoint checkpoint(*options.start.checkpoint);
  Resumed resumed;
  resumed.state = read_state(checkpoint.manifest(), (checkpoint.path() / "manifest.json").string());
  resumed.state.generation = options.start.generation;
  if (!options.start.asked.empty()) resumed.state.branch = {checkpoint.manifest().save_id, options.start.asked};
  const auto policy_before = config_of(checkpoint).early_stop;
  resumed.state.early_stop = continue_early_stop(resumed.state.early_stop, policy_before, parts.config.early_stop);
  if (!resumed.state.early_stop.best) resumed.state.best_save_id.reset();  // the best by another metric, or by none
  checkpoint.load(*parts.store, true);
  parts.store->values_changed();
  const std::string& before = checkpoint.manifest().fingerprint;
  resumed.fingerprint_changed = before != fingerprint;
  if (resumed.fingerprint_changed)
    parts.log.warn(
        fmt::format("resuming on another layout, processor or build: losses agree to rounding, not to the bit.\n"
                    "  before: {}\n  now:    {}",
                    before, fingerprint));
  return resumed;
}

void write_opening(MetricsWriter& metrics, const Parts& parts, const WorkerOptions& options, const RunState& state,
                   bool restarted, bool fingerprint_changed) {
  if (restarted) {
    RestartRecord record;
    record.step = state.step;
    record.generation = state.generation;
    record.checkpoint = options.start.checkpoint ? options.start.checkpoint->string() : "";
    record.fingerprint_changed = fingerprint_changed;
    record.wall_time = wall_clock_text();
    metrics.write(record);
    return;
  }
  StartRecord record;
  record.world = parts.phase.mesh.world();
  record.parameters = parts.phase.table.num_parameters();
  record.seed = parts.config.run.seed;
  record.version = options.version;
  record.wall_time = wall_clock_text();
  metrics.write(record);
}

bool has_content(const fs::path& file) {
  std::error_code error;
  const auto size = fs::file_size(file, error);
  return !error && size > 0;
}

// A mix whose sources all have an epoch cap ends: better refused now than when it runs out.
void check_samples_suffice(const Parts& parts, const RunState& state) {
  const std::optional<std::int64_t> all = parts.data->mixture().num_samples();
  if (!all) return;
  const std::int64_t steps = parts.phase.first_step + parts.phase.num_steps - state.step;
  const std::int64_t needed = checked_add(state.history.next_sample(), checked_mul(steps, parts.phase.global_batch));
  if (needed <= *all) return;
  throw UserError(
      fmt::format("data.train: the run needs {} samples and the epoch caps allow {}; raise data.train[].epochs or "
                  "reduce train.steps",
                  needed, *all));
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

}  // namespace

RunPlan plan_for(const Config& config, std::optional<std::int64_t> world) {
  const auto tokenizer = make_tokenizer(config.data.tokenizer, config.model.vocab);
  return make_run_plan(config, tokenizer->vocab_size(), world);
}

void check_initial_weights(const Config& config) {
  const auto& from = config.model.init.from;
  std::error_code error;
  if (!from || fs::exists(*from, error) || !list_checkpoints(RunPaths(config.run.directory).checkpoints()).empty())
    return;
  throw UserError(
      fmt::format("model.init.from: no such folder: {}; a run that has a checkpoint no longer needs it, this one has "
                  "none",
                  *from));
}

ExitCode train_run(const WorkerOptions& options) {
  const fs::path config_file = options.paths.config();
  Config config = parse_resolved_config(read_text_file(config_file, 1u << 20), config_file.string());
  Parts parts(options, std::move(config));
  const std::string fingerprint = fingerprint_of(parts.config, parts.phase, *parts.backend);
  const bool restarted =
      options.start.checkpoint || options.start.generation > 0 || has_content(options.paths.metrics());
  MetricsWriter metrics(options.paths.metrics(), [&parts](const std::string& text) { parts.log.error(text); });

  Resumed begin;
  if (options.start.checkpoint) {
    begin = resumed_state(parts, options, fingerprint);
  } else {
    begin.state = initial_state(parts, options);
  }
  if (!begin.state.history.continue_with(parts.data->hash(), parts.phase.model.context, parts.phase.global_batch) &&
      options.start.checkpoint)
    parts.log.warn(
        "the data or its mix is not what the checkpoint was trained on: training goes on with what is there now");
  check_samples_suffice(parts, begin.state);
  write_opening(metrics, parts, options, begin.state, restarted, begin.fingerprint_changed);

  double peak = 0.0;
  if (options.calibration_seconds > 0.0)
    peak = calibrate_matmul(*parts.backend, *parts.stream, options.calibration_seconds) *
           static_cast<double>(parts.phase.mesh.world());
  const std::unique_ptr<Communicator> world = make_single_communicator("world");
  StageExecutor executor({.backend = *parts.backend,
                          .stream = *parts.stream,
                          .model = parts.model,
                          .store = *parts.store,
                          .memory = *parts.memory,
                          .progress = options.progress});
  Trainer trainer({.config = parts.config,
                   .plan = parts.phase,
                   .backend = *parts.backend,
                   .stream = *parts.stream,
                   .store = *parts.store,
                   .optimizer = *parts.optimizer,
                   .executor = executor,
                   .world = *world,
                   .data = *parts.data,
                   .validation = parts.validation,
                   .paths = options.paths,
                   .metrics = metrics,
                   .progress = parts.progress,
                   .log = parts.log,
                   .tokenizer_files = parts.tokenizer->files(),
                   .fingerprint = fingerprint,
                   .peak_flops = peak,
                   .hooks = options.hooks},
                  std::move(begin.state));
  const TrainOutcome outcome = trainer.run();
  EndRecord end;
  end.step = trainer.state().step;
  end.reason = outcome_text(outcome);
  metrics.write(end);
  metrics.sync();
  parts.progress.finish();
  parts.log.info(fmt::format("{} at step {}", outcome_text(outcome), end.step));
  return outcome == TrainOutcome::interrupted ? ExitCode::interrupted : ExitCode::finished;
}

}  // namespace scaletrain
