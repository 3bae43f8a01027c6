// scaletrain run: the agent of this host.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "backend/backend.h"
#include "base/error.h"
#include "base/text.h"
#include "commands.h"
#include "config/load.h"
#include "launch/agent.h"
#include "launch/machine.h"
#include "launch/run_lock.h"
#include "launch/signals.h"
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

// A run that cannot fit is refused before it starts to swap.
void refuse_too_large(const RunPlan& plan) {
  const PhasePlan& phase = plan.phases.front();
  const MemoryPlan memory = phase.memory(Rank(0), cpu_workspace_bytes(available_processors()));
  const std::uint64_t available = available_memory();
  if (memory.total() <= available) return;
  throw UserError(fmt::format(
      "this run needs {} of memory and the machine has {}:\n{}Reduce train.micro_batch, model.context or the "
      "model",
      bytes_text(memory.total()), bytes_text(available), memory.text()));
}

ExitCode run_config(const RunArguments& arguments) {
  block_interrupt_signals();
  const InterruptWatcher interrupts;
  const LoadedConfig loaded = load_config(arguments.config, arguments.overrides);
  const RunPaths paths(std::filesystem::absolute(loaded.config.run.directory));
  const ResumeRequest resume = parse_resume(arguments.resume, paths);
  for (const std::string& notice : loaded.notices) write_message("notice: " + notice);
  const RunPlan plan = plan_for(loaded.config, std::nullopt);
  if (plan.phases.front().mesh.world() != 1)
    throw UserError(fmt::format("{} ranks are not supported yet: set the degrees of parallel to 1",
                                plan.phases.front().mesh.world()));
  refuse_too_large(plan);
  check_initial_weights(loaded.config);

  open_run_folder(paths, resume);
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
                             .max_restarts = loaded.config.supervise.max_restarts,
                             .heartbeat = loaded.config.supervise.heartbeat,
                             .log = log,
                             .interrupts = interrupts,
                             .holds_lock = [&lock] { return !lock.lost(); }};
  return run_agent(options);
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
