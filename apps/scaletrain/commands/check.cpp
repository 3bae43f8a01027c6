// scaletrain check: the plan of a run, without starting anything.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "backend/backend.h"
#include "backend/cuda_module.h"
#include "base/error.h"
#include "base/file.h"
#include "base/numbers/checked.h"
#include "base/text.h"
#include "commands.h"
#include "config/keys/keys.h"
#include "config/keys/number_text.h"
#include "config/load.h"
#include "data/order/mix.h"
#include "data/order/sampler.h"
#include "data/size_estimate.h"
#include "data/source_check.h"
#include "data/tasks/count_choices.h"
#include "host/address.h"
#include "host/launcher.h"
#include "host/machine.h"
#include "launch/coordination/places.h"
#include "option_checks.h"
#include "plan/describe/describe.h"
#include "plan/describe/devices.h"
#include "plan/hosts.h"
#include "plan/run_plan.h"
#include "run/device_choice.h"
#include "run/run_checks.h"
#include "train/run_length.h"
#include "train/saving/checkpoint_room.h"
#include "train/start/assembly.h"
#include "train/start/initial_weights.h"
#include "train/start/run_folder.h"

namespace scaletrain {

namespace {

struct CheckArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::int64_t world = 0;
  std::string device;
  std::string device_memory;
  bool json = false;
  bool verbose = false;
  bool instructions = false;
};

std::string joined_lines(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) out += "\n" + line;
  return out;
}

// Nothing where the vocabulary is that of a tokenizer that does not exist yet, or whose files are not there.
std::optional<RunPlan> plan_without_data(const Config& config, std::optional<std::int64_t> world) {
  const TokenizerKind tokenizer = config.data.tokenizer.type;
  const bool is_here = config.data.tokenizer.path && path_exists(*config.data.tokenizer.path);
  if (tokenizer == TokenizerKind::bytes || tokenizer == TokenizerKind::ids || is_here) return plan_for(config, world);
  if (config.model.vocab) return make_run_plan(config, *config.model.vocab, world);
  return std::nullopt;
}

// `run` without a launcher starts all ranks on this machine. Another world than the degrees alone make is a cluster's.
bool is_for_this_machine(const Config& config, std::optional<std::int64_t> world) {
  const ParallelConfig& parallel = config.parallel;
  return !world || parallel.data || *world == parallel.tensor * parallel.pipeline;
}

bool judges_devices(const CheckArguments& arguments) {
  return !arguments.device.empty() || !arguments.device_memory.empty();
}

// What one device of the command line is.
MemoryBudget device_budget(const CheckArguments& arguments, Precision precision) {
  MemoryBudget budget{.kind = MemoryBudget::Kind::device, .name = "the device"};
  if (!arguments.device.empty()) {
    const DeviceModel& device = *find_device(arguments.device);
    budget.name = device.title;
    budget.memory = device.memory;
    budget.peak_flops = peak_flops(device, precision).value_or(0);
    budget.host_link = device.host_link;
    if (budget.peak_flops <= 0)
      write_message(
          fmt::format("notice: --device {}: no {} in hardware: there is no time to tell; set precision.compute: {}",
                      device.name, to_text(precision), to_text(precision_instead(device))));
  }
  if (!arguments.device_memory.empty()) budget.memory = *parse_size(arguments.device_memory);
  return budget;
}

// Empty: it is one that can be computed on.
std::string age_text(const std::string& name) {
  const DeviceModel* const device = name.empty() ? nullptr : find_device(name);
  if (device == nullptr || device->sm >= cuda_oldest_sm) return {};
  return fmt::format("--device {}: GPUs of sm_{} are older than sm_{}, the oldest that is supported; choose another",
                     device->name, device->sm, cuda_oldest_sm);
}

// Of the GPUs that the plan is judged for; 0: nothing tells.
int compute_capability(const CheckArguments& arguments, const std::optional<VisibleGpus>& gpus, std::int64_t ranks) {
  if (!arguments.device.empty()) return find_device(arguments.device)->sm;
  return gpus && !judges_devices(arguments) ? gpus->smallest(std::min(ranks, gpus->count())).sm : 0;
}

// Of this machine's processors together: products for a moment, on all of them.
double measured_peak(DType compute) {
  constexpr double moment = 0.1;
  const auto backend = make_cpu_backend({.compute = compute});
  const auto stream = backend->make_stream();
  return calibrate_matmul(*backend, *stream, moment);
}

// A rank's part of a GPU of this machine; nothing where there is none, which look_at_gpus() has told.
std::optional<MemoryBudget> gpu_budget(const std::optional<VisibleGpus>& gpus, std::int64_t ranks,
                                       const Config& config) {
  if (!gpus) {
    write_message("notice: --device h100 or --device-memory 80GiB says what the plan is judged against");
    return std::nullopt;
  }
  const DeviceFacts& gpu = gpus->smallest(std::min(ranks, gpus->count()));
  const std::int64_t sharers = ceil_div(ranks, gpus->count());
  const DeviceModel* const model = find_device_of_driver(gpu.name);
  const double peak = model == nullptr ? 0.0 : peak_flops(*model, config.compute_precision()).value_or(0);
  return MemoryBudget{
      .kind = MemoryBudget::Kind::device,
      .name = sharers == 1 ? gpu.name : fmt::format("its part of {}, which {} ranks share,", gpu.name, sharers),
      .memory = gpu.memory / static_cast<std::uint64_t>(sharers),
      .peak_flops = config.log.peak_flops().value_or(peak / static_cast<double>(sharers)),
      .host_link = model == nullptr ? 0.0 : model->host_link / static_cast<double>(sharers),
      .is_shared = sharers > 1};
}

// Ranks that compute on processors share their host's memory, `sharers` of them; a cluster's hosts are taken to be like
// this one.
std::optional<MemoryBudget> budget_of(const Config& config, const PhasePlan& phase, const CheckArguments& arguments,
                                      const std::optional<VisibleGpus>& gpus, bool is_here, std::int64_t sharers) {
  if (judges_devices(arguments)) return device_budget(arguments, config.compute_precision());
  if (config.run.device == DeviceKind::cuda) return gpu_budget(gpus, is_here ? phase.mesh.world() : 1, config);
  const std::optional<double> peak = config.log.peak_flops();
  return MemoryBudget{.kind = MemoryBudget::Kind::host,
                      .name = is_here ? "this machine" : "a host like this machine",
                      .memory = available_memory(),
                      .peak_flops = peak ? *peak * static_cast<double>(sharers) : measured_peak(phase.compute)};
}

std::vector<std::optional<SourceSize>> source_sizes(const Config& config, std::int64_t vocab) {
  std::vector<std::optional<SourceSize>> sizes;
  for (const SourceConfig& source : config.data.train) {
    const auto estimate = estimate_tokens(source, config.data.tokenizer, vocab);
    sizes.push_back(estimate ? std::optional(SourceSize{estimate->tokens, estimate->basis}) : std::nullopt);
  }
  return sizes;
}

// What a run in epochs comes to, put into the plan: by what its checkpoint has counted, else by the sizes of its files.
StepCount count_steps(const Config& config, const std::vector<std::optional<SourceSize>>& sizes,
                      const std::optional<RunSoFar>& so_far, PhasePlan& phase) {
  if (!config.train.epochs) return StepCount::exact;
  if (so_far && so_far->last_step > 0) {
    phase.num_steps = so_far->last_step;
    return StepCount::exact;
  }
  phase.num_steps = 1;
  std::int64_t samples = 0;
  std::optional<std::int64_t> left = 0;  // by the caps, as the run counts it
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::optional<SourceSize>& size = sizes[i];
    if (!size || size->tokens == 0 || size->tokens > static_cast<std::uint64_t>(kMostCounted))
      return StepCount::unknown;
    const std::int64_t of_source = ceil_div(static_cast<std::int64_t>(size->tokens), phase.model.context);
    samples = checked_add(samples, of_source);
    const auto cap = cap_in_samples(config.data.train[i].epochs, of_source);
    left = left && cap ? std::optional(checked_add(*left, *cap)) : std::nullopt;
  }
  if (samples == 0) return StepCount::unknown;
  phase.num_steps = steps_of_epochs(*config.train.epochs, samples, 0, left, phase.global_batch);
  return StepCount::estimated;
}

// The world that the plan is of. Of replicas that are left to the GPUs of this machine there are as many as a start on
// it makes.
std::optional<std::int64_t> planned_world(const Config& config, std::optional<std::int64_t> world,
                                          const std::optional<VisibleGpus>& gpus) {
  if (world || config.parallel.data || !gpus) return world;
  const LaunchConfig launch = launch_on_gpus(config.parallel, config.launch, 1, gpus->count());
  return lay_out_nodes(config.parallel, launch, 1, std::numeric_limits<std::int64_t>::max()).world();
}

std::int64_t choices_of_task(std::size_t index, const std::string& path) {
  try {
    return count_choices(path);
  } catch (const InputError& error) {
    throw InputError(fmt::format("evaluate.tasks.{}.path: {}", index, error.what()));
  }
}

DescribeOptions describe_options(const Config& config, const RunPlan& plan, const CheckArguments& arguments,
                                 std::optional<std::int64_t> world, const std::optional<VisibleGpus>& gpus,
                                 std::optional<RunSoFar> so_far) {
  const PhasePlan& phase = plan.phases.front();
  const Mesh& mesh = phase.mesh;
  const bool is_here = is_for_this_machine(config, world);
  const std::int64_t sharers = place_on_hosts(config, mesh, is_here).ranks_per_host;
  return {.backend_workspace = workspace_of_sharers(phase, sharers),
          .all_on_one_host = is_here,
          .is_world_given = planned_world(config, world, gpus).has_value(),
          .machine_memory = is_here ? std::optional(available_memory()) : std::nullopt,
          .instructions = arguments.instructions,
          .verbose = arguments.verbose,
          .budget = budget_of(config, phase, arguments, gpus, is_here, sharers),
          .sources = source_sizes(config, plan.phases.front().model.vocab),
          .so_far = std::move(so_far)};
}

// Whether its checkpoints will fit. Where not even one does, a run that begins is refused, and one that goes on only
// told. A folder that cannot be looked at is the run's business.
void judge_room(const Config& config, const PhasePlan& phase, bool begins) {
  std::string refusal;
  try {
    const auto folder = RunPaths(config.run.directory).checkpoints();
    const CheckpointRoom room = checkpoint_room(config, phase, folder, available_bytes(folder));
    if (room.fits()) return;
    if (room.fits_none() && begins)
      refusal = room.shortage() + ". Not even one fits";
    else
      write_message("notice: " + room.shortage());
  } catch (const InputError&) {
    return;
  }
  if (!refusal.empty()) throw InputError(refusal);
}

// What keeps the config from being run, all at once, so that `check && run` stops here.
class Reasons {
 public:
  explicit Reasons(const LoadedConfig& loaded)
      : loaded_(loaded),
        lines_(loaded.unsupported),
        is_config_(!loaded.unsupported.empty() || (!loaded.unready.empty() && !loaded.is_unready_data)) {
    lines_.insert(lines_.end(), loaded.unready.begin(), loaded.unready.end());
  }

  void add(const std::string& config_line) {
    lines_.push_back(config_line);
    is_config_ = true;
  }
  // What the look throws; a notice where another machine is to run the plan. False if it has thrown.
  bool look(const std::function<void()>& look, bool is_here = true) {
    const CommandResult found = run_guarded([&] {
      with_places(loaded_, look);
      return ExitCode::finished;
    });
    if (found.message.empty()) return true;
    if (!is_here) {
      write_message("notice: " + found.message);
      return false;
    }
    lines_.push_back(found.message);
    is_config_ = is_config_ || found.code == ExitCode::usage;
    return false;
  }

  std::string text() const { return joined_lines(lines_); }
  // Without those that this line says already.
  std::string text_beside(const std::string& line) const {
    std::vector<std::string> others = lines_;
    std::erase(others, line);
    return joined_lines(others);
  }
  // UserError where the config is to be mended, InputError where it is the data or a folder.
  void refuse(const std::string& opening) const {
    if (lines_.empty()) return;
    if (is_config_) throw UserError(opening + text());
    throw InputError(opening + text());
  }

 private:
  const LoadedConfig& loaded_;
  std::vector<std::string> lines_;
  bool is_config_;
};

// What the start of the run finds in its folder; where it would go on there.
std::optional<RunSoFar> look_at_run_folder(const LoadedConfig& loaded, bool is_here, Reasons& reasons) {
  const RunPaths paths(std::filesystem::absolute(loaded.config.run.directory));
  if (!reasons.look([&] { check_run_folder(paths); }, is_here)) return std::nullopt;
  // A resume computes where the run does, whatever devices the plan is for.
  LoadedConfig resumed = loaded;
  resumed.config.precision.compute = loaded.compute_of_run;
  std::optional<Resumption> resumption;
  reasons.look([&] { resumption = check_resume(paths, resumed, write_message); }, is_here);
  if (!resumption) return std::nullopt;
  return RunSoFar{.step = resumption->step,
                  .last_step = resumption->last_step,
                  .epochs_read = std::move(resumption->epochs_read),
                  .tokens = resumption->tokens};
}

// The GPUs that the run would be on. On another machine there may be some where here is none.
std::optional<VisibleGpus> look_at_gpus(const LoadedConfig& loaded, const CheckArguments& arguments, bool is_here,
                                        Reasons& reasons) {
  std::optional<VisibleGpus> gpus;
  const auto look = [&gpus] {
    VisibleGpus there = VisibleGpus::look();
    there.at(0);
    gpus = std::move(there);
  };
  if (loaded.config.run.device == DeviceKind::cuda && !judges_devices(arguments)) reasons.look(look, is_here);
  return gpus;
}

void tell_gpus(const VisibleGpus& gpus, std::int64_t ranks) {
  const std::string notice = gpus_notice(gpus, ranks);
  if (!notice.empty()) write_message("notice: " + notice);
}

// Those that run will have it, or not: this host may be where somebody only looks.
void notice_interface(const LoadedConfig& loaded) {
  const auto& interface = loaded.config.launch.interface;
  if (!interface) return;
  try {
    address_of_interface(*interface);
  } catch (const UserError& error) {
    write_message(fmt::format("notice: {}. A start on this host is refused", loaded.located(error.what())));
  }
}

void judge(const CheckArguments& arguments, const LoadedConfig& loaded, const PlanDescription& description,
           Reasons& reasons) {
  // Where it is judged for other devices, what this machine has is by the way.
  if (!description.refusal.empty() && judges_devices(arguments)) {
    write_message("notice: " + description.refusal);
  } else if (!description.refusal.empty()) {
    reasons.add(description.refusal);
  }
  const bool is_gpu_here = loaded.config.run.device == DeviceKind::cuda && !judges_devices(arguments);
  if (!description.misfit.empty() && (description.refusal.empty() || judges_devices(arguments)))
    reasons.add(description.misfit +
                (is_gpu_here ? "; run.device: cpu would compute on this machine's processors" : ""));
  if (description.is_clearly_short) reasons.add(loaded.located(description.shortage));
  if (!description.is_clearly_short && !description.shortage.empty())
    write_message("notice: " + loaded.located(description.shortage));
}

ExitCode check_config(const CheckArguments& arguments) {
  const auto world = arguments.world > 0 ? std::optional(arguments.world) : std::nullopt;
  LoadOptions options{.allow_unsupported = true,
                      .missing_paths = MissingPaths::list,
                      .look_at_data =
                          [](const Config& config) {
                            return source_problems(
                                config.data, {.has_begun = [&config] { return checkpoint_of_run(config).has_value(); },
                                              .report = write_message});
                          },
                      .look_at_model = look_at_folder_model};
  if (world) options.world = WorldSize{.ranks = *world, .told = "--world asks for"};
  options.choose_device = [&world](const Config& config, std::vector<std::string>& notices) {
    return choose_device(config, lone_place(), is_for_this_machine(config, world) ? std::nullopt : world, notices);
  };
  if (judges_devices(arguments)) options.device = DeviceKind::cuda;
  const LoadedConfig loaded = load_config(arguments.config, arguments.overrides, process_environment, options);
  for (const std::string& notice : loaded.notices) write_message("notice: " + notice);
  const bool is_here = is_for_this_machine(loaded.config, world) && !judges_devices(arguments);
  Reasons reasons(loaded);
  std::optional<RunSoFar> so_far = look_at_run_folder(loaded, is_here, reasons);
  const bool begins = !so_far || so_far->step == 0;
  notice_interface(loaded);
  std::optional<VisibleGpus> gpus = look_at_gpus(loaded, arguments, is_here, reasons);
  // What processors take for themselves (packed weights) is no part of a plan for other devices.
  Config planned = loaded.config;
  if (judges_devices(arguments)) planned.run.device = DeviceKind::cuda;
  std::optional<RunPlan> plan;
  try {
    plan = plan_without_data(planned, planned_world(planned, world, gpus));
  } catch (const UserError& error) {
    const std::string problem = loaded.located(error.what());
    throw UserError(problem + reasons.text_beside(problem));
  }
  if (!plan)
    throw UserError("there is no plan without the tokenizer's size, and this cannot be run yet:" + reasons.text());
  for (const std::string& notice : plan->notices) write_message("notice: " + notice);
  const std::int64_t ranks = plan->phases.front().mesh.world();
  if (gpus && is_here && !reasons.look([&] { gpus->smallest(std::min(ranks, gpus->count())); })) gpus.reset();
  if (gpus && is_here) tell_gpus(*gpus, ranks);
  if (gpus) reasons.look([&] { refuse_environment(planned, plan->phases.front().compute); }, is_here);
  if (planned.run.device == DeviceKind::cuda)
    for (PhasePlan& phase : plan->phases)
      phase.attention_workspace = cuda_attention_workspace_of(compute_capability(arguments, gpus, ranks));
  DescribeOptions describe = describe_options(planned, *plan, arguments, world, gpus, std::move(so_far));
  for (std::size_t i = 0; i < planned.evaluate.tasks.size(); ++i)
    if (const std::string& path = planned.evaluate.tasks[i].path; path_exists(path))
      reasons.look([&] { describe.task_choices += choices_of_task(i, path); });
  if (describe.budget && describe.budget->is_shared)
    for (PhasePlan& phase : plan->phases) phase.may_be_direct = false;
  RunPlan told = *plan;
  describe.step_count = count_steps(planned, describe.sources, describe.so_far, told.phases.front());
  const PlanDescription description = describe_plan(planned, told, describe);
  write_output(arguments.json ? description.json + "\n" : description.text);
  if (is_for_this_machine(loaded.config, world))
    reasons.look([&] { judge_room(loaded.config, plan->phases.front(), begins); }, is_here);
  reasons.look([&] { check_initial_weights(loaded.config, plan->phases.front().model); });
  judge(arguments, loaded, description, reasons);
  if (const std::string age = age_text(arguments.device); !age.empty()) reasons.add(age);
  reasons.refuse("this is the plan, but it cannot be run so:");
  return ExitCode::finished;
}

std::string device_names() {
  std::string names;
  for (const DeviceModel& device : known_devices()) names += (names.empty() ? "" : "|") + std::string(device.name);
  return names;
}

CLI::Validator known_device() {
  return {[](const std::string& name) {
            return find_device(name) != nullptr
                       ? std::string()
                       : fmt::format("unknown device {}; use {}", quoted(name), device_names());
          },
          ""};
}

CLI::Validator size_text() {
  return {[](const std::string& text) {
            if (parse_size(text).value_or(0) == 0) return "must be a size such as 80GiB, not " + quoted(text);
            const bool has_unit = std::isalpha(static_cast<unsigned char>(text.back())) != 0;
            return has_unit ? std::string()
                            : fmt::format("{0} is {0} bytes; write {0}GiB, or {0}B if that is meant", text);
          },
          ""};
}

}  // namespace

Command add_check(CLI::App& app) {
  auto arguments = std::make_shared<CheckArguments>();
  CLI::App* command = app.add_subcommand("check", "Validate a config; print layout, schedule and memory");
  command->footer(
      "Exit code 0: it can be run. 2: the config is wrong, a path leads nowhere, or the\n"
      "plan DOES NOT FIT the memory that it is judged by. 3: the data cannot be read,\n"
      "or a folder not be written. Nothing is made or changed.\n"
      "The plan is printed all the same, as far as there is one.");
  command->add_option("config", arguments->config, "The YAML file")->required();
  command->add_option("--set", arguments->overrides, "Override a key: --set train.steps=100 (repeatable)")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->add_option("--world", arguments->world, "Plan for this many ranks")
      ->transform(whole_number(1, std::uint64_t{1} << 40))
      ->type_name("N");
  command
      ->add_option("--device", arguments->device,
                   "Judge and time the plan for devices of this kind (precision.compute auto: bf16); without, for "
                   "this machine's memory and processors")
      ->check(known_device())
      ->type_name(device_names());
  command
      ->add_option("--device-memory", arguments->device_memory, "Judge the plan for devices of so much memory: 80GiB")
      ->check(size_text())
      ->type_name("SIZE");
  CLI::Option* json = command->add_flag("--json", arguments->json, "One JSON object on standard output");
  // The object holds all of that as it is.
  command->add_flag("--verbose", arguments->verbose, "Stages, ranks, groups, traffic and timeline too")->excludes(json);
  command->add_flag("--instructions", arguments->instructions, "List what each stage does in one step");
  return [arguments] { return check_config(*arguments); };
}

}  // namespace scaletrain
