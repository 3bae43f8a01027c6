// scaletrain run: the agent of this host, or one rank where a launcher has started all of them.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include "backend/backend.h"
#include "base/error.h"
#include "base/text.h"
#include "commands.h"
#include "config/load.h"
#include "launch/agent.h"
#include "launch/launcher.h"
#include "launch/machine.h"
#include "launch/run_lock.h"
#include "launch/signals.h"
#include "launched.h"
#include "telemetry/log.h"
#include "telemetry/progress.h"
#include "train/assembly.h"

namespace scaletrain {

namespace {

struct RunArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string resume = "auto";
};

// A run that cannot fit is refused before it starts to swap. The ranks of this host, `count` from `first` on.
void refuse_too_large(const RunPlan& plan, std::int64_t first, std::int64_t count) {
  const PhasePlan& phase = plan.phases.front();
  const std::size_t workspace =
      cpu_workspace_bytes(static_cast<int>(std::max<std::int64_t>(1, available_processors() / count)));
  std::map<std::int64_t, std::int64_t> ranks_of_stage;
  for (std::int64_t rank = first; rank < first + count; ++rank)
    ++ranks_of_stage[phase.mesh.position_of(Rank(rank)).pipeline];
  std::uint64_t needed = 0;
  std::string parts;
  for (const auto& [stage, ranks] : ranks_of_stage) {
    // The ranks of a stage differ by padding at most.
    const MemoryPlan memory = phase.memory(phase.mesh.rank_of({.pipeline = stage}), workspace);
    needed += memory.total() * static_cast<std::uint64_t>(ranks);
    if (count > 1) parts += fmt::format("{} rank{} of stage {}, each:\n", ranks, ranks == 1 ? "" : "s", stage);
    parts += memory.text();
  }
  const std::uint64_t available = available_memory();
  if (needed <= available) return;
  throw UserError(fmt::format(
      "this run needs {} of memory and the machine has {}:\n{}Reduce train.micro_batch, model.context or the "
      "model",
      bytes_text(needed), bytes_text(available), parts));
}

// The plan's refusals with the places of their keys.
RunPlan plan_of(const LoadedConfig& loaded, std::optional<std::int64_t> world) {
  try {
    return plan_for(loaded.config, world);
  } catch (const UserError& error) {
    throw UserError(loaded.located(error.what()));
  }
}

// The agent of this host: one run of it from start to end, its workers started again as often as the config allows.
ExitCode run_as_agent(const LoadedConfig& loaded, const RunPaths& paths, const ResumeRequest& resume,
                      std::int64_t world, const InterruptWatcher& interrupts) {
  const RunLock lock = RunLock::acquire(paths.lock(), run_lock_options_from_environment());
  const StartPoint start = prepare_run_folder(paths, loaded, resume, write_message);
  if (const auto complete = already_complete(start, loaded.config)) {
    write_message(*complete);
    return ExitCode::finished;
  }
  if (start.checkpoint)
    write_message(fmt::format("resuming from {} (step {})", start.checkpoint->string(), start.step));
  // The worker's live line may stand on the same terminal; a message takes its place.
  const std::string_view take_line = progress_options_for(stderr, 0, 1).live ? "\r\x1b[K" : "";
  Log log({.file = agent_log_path(paths, 0), .standard_error = false, .console = [take_line](std::string_view text) {
             write_message(fmt::format("{}{}", take_line, text));
           }});
  const AgentOptions options{.paths = paths,
                             .start = start,
                             .lock_id = lock.lock_id(),
                             .world = world,
                             .max_restarts = loaded.config.supervise.max_restarts,
                             .heartbeat = loaded.config.supervise.heartbeat,
                             .log = log,
                             .interrupts = interrupts,
                             .holds_lock = [&lock] { return !lock.lost(); }};
  return run_agent(options);
}

ExitCode run_config(const RunArguments& arguments) {
  block_interrupt_signals();
  const InterruptWatcher interrupts;
  const std::optional<LauncherPlace> place = detect_launcher();
  const LoadedConfig loaded = load_config(arguments.config, arguments.overrides);
  const RunPaths paths(std::filesystem::absolute(loaded.config.run.directory));
  const ResumeRequest resume = parse_resume(arguments.resume, paths);
  if (!place || place->rank == 0)
    for (const std::string& notice : loaded.notices) write_message("notice: " + notice);
  const RunPlan plan = plan_of(loaded, place ? std::optional(place->world) : std::nullopt);
  const std::int64_t world = plan.phases.front().mesh.world();
  if (place) {
    const std::int64_t first = std::max<std::int64_t>(0, place->rank - place->local_rank);
    refuse_too_large(plan, first, std::min(place->local_world, world - first));
  } else {
    refuse_too_large(plan, 0, world);
  }
  check_initial_weights(loaded.config);
  open_run_folder(paths, resume);
  if (place)
    return run_as_launched_rank(
        {.loaded = loaded, .paths = paths, .resume = resume, .place = *place, .interrupts = interrupts});
  return run_as_agent(loaded, paths, resume, world, interrupts);
}

}  // namespace

Command add_run(CLI::App& app) {
  auto arguments = std::make_shared<RunArguments>();
  CLI::App* command = app.add_subcommand("run", "Train what the config says, resuming where an earlier start left off");
  command->add_option("config", arguments->config, "The YAML file")->required();
  command->add_option("--set", arguments->overrides, "Override a key: --set train.steps=100 (repeatable)")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command
      ->add_option("--resume", arguments->resume,
                   "auto: from the newest checkpoint if there is one; never: refuse if there is one; required: refuse "
                   "if there is "
                   "none; or a checkpoint's folder")
      ->type_name("auto|never|required|CHECKPOINT");
  return [arguments] { return run_config(*arguments); };
}

}  // namespace scaletrain
