#include "train/start/worker_parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <new>
#include <utility>

#include "base/process/memory_limit.h"
#include "base/text.h"
#include "host/machine.h"
#include "plan/hosts.h"
#include "train/data/data_agreement.h"
#include "train/data/data_files.h"
#include "train/start/tokenising_progress.h"

namespace scaletrain {

namespace {

RunPlan plan_of_place(const Config& config, const Tokenizer& tokenizer, const WorkerPlace& place) {
  RunPlan plan = make_run_plan(config, tokenizer.vocab_size(), place.world);
  for (const PhasePlan& phase : plan.phases) {
    if (phase.mesh.world() == place.world) continue;
    throw UserError(fmt::format("parallel: the layout {} needs {} ranks, {} were started", phase.mesh.text(),
                                phase.mesh.world(), place.world));
  }
  return plan;
}

CommunicatorFactory communicators_of(const WorkerPlace& place, const PhasePlan& phase, const LaunchConfig& launch,
                                     Backend& backend) {
  return place.make_communicators ? place.make_communicators(phase, launch, backend) : CommunicatorFactory();
}

std::uint64_t increase(std::uint64_t before, std::uint64_t after) {
  return after - std::min(before, after);
}

// One that is gone, or back, gives the others other numbers: ranks would take other GPUs than were judged for them, or
// share one.
void require_gpus(std::int64_t expected, std::int64_t found) {
  if (expected == 0 || found == expected) return;
  if (found > expected)
    throw PeerError(fmt::format("{} has {} now, and {} when the run was started: start it again to use them",
                                host_name(), counted(found, "GPU"), expected));
  throw PeerError(
      fmt::format("{} of the {} GPUs of {} that the run was started on {} left: start it again to go on with those",
                  found, expected, host_name(), found == 1 ? "is" : "are"));
}

// After a failure those that rank 0 has noted; nothing where somebody starts the run, since it will note them.
std::vector<SourceFiles> files_to_keep_to(const WorkerOptions& options, Log& log) {
  if (options.start.cause.empty()) return {};
  try {
    return read_data_files(options.paths.data_files());
  } catch (const InputError& error) {
    log.warn(
        fmt::format("files that came to the data's folders since the run was started are read too: {}", error.what()));
    return {};
  }
}

}  // namespace

std::string out_of_memory_text(const PhasePlan& phase, Rank rank, std::size_t workspace, std::string_view when,
                               std::string_view there_is) {
  const std::string who =
      phase.mesh.world() == 1 ? "out of memory" : fmt::format("rank {}: out of memory", rank.value());
  return fmt::format("{}{}{}:\n{}Reduce train.micro_batch, model.context or the model{}", who, when.empty() ? "" : " ",
                     when, memory_of_rank(phase, rank, workspace).text(), there_is);
}

int host_threads(const WorkerOptions& options) {
  return options.threads > 0 ? options.threads : available_processors();
}

// The host's other ranks wait meanwhile. More than the reading thread can feed would only take memory.
int tokenising_threads(const WorkerOptions& options) {
  constexpr int most = 32;
  return std::clamp(std::max(options.threads, available_processors()), 1, most);
}

WorkerParts::WorkerParts(const WorkerOptions& options, Config run_config, std::vector<MixSource> read,
                         StartUp& start_up)
    : config(std::move(run_config)),
      rank(options.place.rank),
      tokenizer(make_tokenizer(config.data.tokenizer, config.model.vocab)),
      plan(plan_of_place(config, *tokenizer, options.place)),
      phase(plan.phase_at(options.start.step)),
      backend(make_backend(options)),
      device_memory_before(backend->device_memory_in_use()),
      stream(backend->make_stream()),
      groups(connect(options)),
      device_memory_of_groups(increase(device_memory_before, backend->device_memory_in_use())),
      num_gpus(count_gpus()),
      model(phase.transformer(rank)),
      optimizer(make_optimizer(config.train.optimizer)),
      layout(phase.layout(rank)),
      progress(options.console, progress_options_for(options.console, phase.num_steps, config.log.every)),
      log(log_options(options)) {
  if (options.knows_memory) options.knows_memory(out_of_memory("").what());
  const std::string notice = options.place.connection_notice ? options.place.connection_notice() : "";
  if (!notice.empty()) {
    log.warn(notice);
    start_up.tell_first(notice);
    has_connection_notice = true;
  }
  const std::string words = options.place.connection_words ? options.place.connection_words() : "";
  if (!words.empty()) log.info(words + memory_of_groups_text());
  // Of rank 0's the start line tells.
  if (const auto device = backend->device(); device && !is_first())
    log.info(fmt::format("rank {} computes on GPU {} ({})", rank.value(), gpu, device->name));
  files_of_start = files_to_keep_to(options, log);
  // A restart after a failure need not make the full check of the start again.
  const DataCheck check = options.start.cause.empty() ? config.data.verify : DataCheck::changed;
  start_up.first_on_host([&](const std::string& found) { return open_data(options, found, check, read); });
  allocate(options.work);
}

// The plan learns whose memory its ranks compute in.
std::unique_ptr<Backend> WorkerParts::make_backend(const WorkerOptions& options) {
  auto made = config.run.device == DeviceKind::cuda ? make_gpu_backend(options)
                                                    : options.make_backend({.threads = options.threads,
                                                                            .instruction_set = "auto",
                                                                            .work = options.work,
                                                                            .compute = phase.compute});
  for (PhasePlan& each : plan.phases) {
    each.compute_on(*made);
    each.may_be_direct = each.may_be_direct && options.place.gpus.is_own();
  }
  return made;
}

// Whoever starts a run has judged whether there is such a GPU: one that is gone since is a failure of the machine's,
// and may come back.
std::unique_ptr<Backend> WorkerParts::make_gpu_backend(const WorkerOptions& options) {
  try {
    // Kernels of NCCL wait for peers, and so would whoever loads a kernel then. Before the first look at a GPU.
    if (options.place.world > 1 && options.place.gpus.is_own() && may_use_nccl(config.launch.transport))
      load_kernels_ahead();
    const int gpus = options.count_gpus();
    require_gpus(options.place.gpus.expected, gpus);
    gpu = options.place.gpus.device(gpus);
    gpu_sharers = options.place.gpus.sharers(gpus);
    return options.make_gpu_backend({.device = gpu,
                                     .compute = phase.compute,
                                     .tf32 = config.compute_precision() == Precision::tf32,
                                     .graphs = config.run.cuda_graphs,
                                     .threads = host_threads(options),
                                     .work = options.work});
  } catch (const UserError& error) {
    throw PeerError(fmt::format("the GPU of {} cannot be used any more: {}", host_name(), reason_without_key(error)));
  }
}

RankGroups WorkerParts::connect(const WorkerOptions& options) {
  try {
    return make_groups(phase.mesh, rank, phase.group_facts(),
                       communicators_of(options.place, phase, config.launch, *backend));
  } catch (const std::bad_alloc&) {
    throw out_of_memory("while connecting to the other ranks");
  }
}

// How good the plan's estimate is of what NCCL takes.
std::string WorkerParts::memory_of_groups_text() const {
  const std::size_t planned = phase.device_staging(rank) + phase.device_connections(rank);
  if (planned == 0) return "";
  return fmt::format("; to connect rank {} took {} of its GPU's memory, {} were planned", rank.value(),
                     bytes_text(device_memory_of_groups), bytes_text(planned));
}

// Each counts its part of the GPU that it is on.
std::int64_t WorkerParts::count_gpus() const {
  if (!backend->device()) return 0;
  double gpus = 1.0 / static_cast<double>(gpu_sharers);
  sum_over_world(groups, {&gpus, 1});
  return std::llround(gpus);
}

// Every rank has its file; people see what the first one says, since the others say the same.
LogOptions WorkerParts::log_options(const WorkerOptions& options) {
  LogOptions log_to{.file = rank_log_path(options.paths.folder, rank.value())};
  if (is_first()) log_to.console = [this](std::string_view text) { progress.message(text); };
  return log_to;
}

std::string WorkerParts::open_data(const WorkerOptions& options, const std::string& found_by_first, DataCheck check,
                                   const std::vector<MixSource>& read) {
  TokenisingProgress progress_of_text(is_first() ? options.console : nullptr, log);
  DataConfig asked = config.data;
  asked.verify = check;
  const DataClaim found = found_by_first.empty() ? DataClaim() : parse_claim(found_by_first);
  const DataOptions data_options{
      .vocab = phase.model.vocab,
      .context = phase.model.context,
      .seed = config.run.seed,
      .report = [this](const std::string& text) { log.info(text); },
      .threads = tokenising_threads(options),
      .progress = [&progress_of_text](const std::string& name, std::uint64_t bytes,
                                      std::uint64_t all) { progress_of_text.update(name, bytes, all); },
      .known = found.sources,
      .read = read,
      .only = files_of_start,
      .opened = [this](SourceContent content) { contents.push_back(std::move(content)); }};
  data = open_training_data(asked, *tokenizer, data_options);
  for (std::size_t i = 0; i < asked.validation.size(); ++i)
    validation.push_back(
        open_validation_set(asked.validation[i], asked, *tokenizer, data_options, validation_key(asked, i)));
  for (std::size_t i = 0; i < config.evaluate.tasks.size(); ++i) {
    const TaskConfig& task = config.evaluate.tasks[i];
    const std::string key = fmt::format("evaluate.tasks.{}", i);
    try {
      tasks.push_back(std::make_unique<ChoiceTask>(task.name, task.path, *tokenizer, phase.model.context, key));
    } catch (const InputError& error) {
      throw InputError(fmt::format("{}: {}", key, error.what()));
    }
    if (const std::int64_t cut = tasks.back()->num_cut(); cut > 0 && data_options.report)
      data_options.report(fmt::format("{}: {} longer than the context: of these the end is read", key,
                                      cut == 1 ? "one text is" : fmt::format("{} texts are", cut)));
  }
  return claim_text(make_data_claim(tokenizer->hash(), contents));
}

void WorkerParts::allocate(WorkCount* work) {
  try {
    backend->prepare(*stream);
    ParamStore::Options store_options = phase.store_options(backend->compute_type());
    store_options.groups = &groups;
    store_options.work = work;
    store = std::make_unique<ParamStore>(*backend, phase.table, layout, std::move(store_options));
    memory = std::make_unique<StageMemory>(*backend, phase.activations(rank), phase.shorter_arena_bytes(rank));
  } catch (const std::bad_alloc&) {
    throw out_of_memory("while allocating what the plan needs");
  }
}

InputError WorkerParts::out_of_memory(std::string_view when) const {
  std::string there_is(MemoryLimitText().view());
  if (const auto device = backend->device())
    there_is = fmt::format(
        "; the GPU ({}) has {}, of which {} were in use before the first of these (by other "
        "processes, and by CUDA in this one){}",
        device->name, bytes_text(device->memory), bytes_text(device_memory_before), there_is);
  return InputError(out_of_memory_text(phase, rank, backend->workspace_bytes(), when, there_is));
}

std::string fingerprint_of(const WorkerParts& parts) {
  const PhasePlan& plan = parts.phase;
  std::string layout = fmt::format("{}; {}; chunks {}; zero {}", plan.mesh.text(), to_text(plan.schedule_kind),
                                   plan.chunks, parts.config.parallel.zero);
  if (plan.zero.shard_parameters && !plan.zero.shard_gradients) layout += "; gradients once a step";
  if (plan.sequence) layout += "; sequence";
  if (plan.reduce && plan.mesh.degree(Axis::data) > 1) layout += fmt::format("; reduce {}", to_text(*plan.reduce));
  if (plan.stages.size() > 1) {
    std::vector<std::int64_t> layers;
    for (const StageBlocks& stage : plan.stages) layers.push_back(stage.count);
    layout += fmt::format("; layers {}", fmt::join(layers, "+"));
  }
  return fmt::format("{}; micro-batch {}; {}", layout, plan.micro_batch.samples, parts.backend->description());
}

}  // namespace scaletrain
