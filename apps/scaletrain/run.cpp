// scaletrain run: the agent of this host, or one rank where a launcher has started all of them.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <limits>
#include <memory>
#include <optional>

#include "base/error.h"
#include "commands.h"
#include "config/load.h"
#include "launch/agent.h"
#include "launch/launched_world.h"
#include "launch/launcher.h"
#include "launch/node_layout.h"
#include "launch/run_lock.h"
#include "launch/signals.h"
#include "launched.h"
#include "node.h"
#include "run_checks.h"
#include "telemetry/log.h"
#include "telemetry/progress.h"
#include "train/assembly.h"
#include "train/end_of_run.h"

namespace scaletrain {

namespace {

struct RunArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string resume = "auto";
  bool print_directory = false;
};

// For scripts that look after the run: where it will be, also where it could not start now.
ExitCode print_directory(const RunArguments& arguments) {
  const LoadedConfig loaded = load_config(arguments.config, arguments.overrides, process_environment,
                                          {.allow_unsupported = true, .missing_paths = MissingPaths::ignore});
  write_output(std::filesystem::absolute(loaded.config.run.directory).string() + "\n");
  return ExitCode::finished;
}

// The agent of this host: one run of it from start to end, its workers started again as often as the config allows.
ExitCode run_as_agent(const LoadedConfig& loaded, const RunPaths& paths, const ResumeRequest& resume,
                      std::int64_t world, const std::string& address, const InterruptWatcher& interrupts) {
  const RunLock lock = RunLock::acquire(paths.lock(), run_lock_options_from_environment());
  const StartPoint start = prepare_run_folder(paths, loaded, resume, write_message);
  if (const auto complete = already_complete(start, loaded.config)) {
    write_message(*complete);
    return ExitCode::finished;
  }
  if (start.checkpoint)
    write_message(fmt::format("resuming from {} (step {})", start.checkpoint->string(), start.step));
  EndOfRun end_of_run(paths.metrics(), [&lock] { return !lock.lost(); });
  // The worker's live line may stand on the same terminal; a message takes its place.
  const std::string_view take_line = progress_options_for(stderr, 0, 1).live ? "\r\x1b[K" : "";
  Log log({.file = agent_log_path(paths, 0), .standard_error = false, .console = [take_line](std::string_view text) {
             write_message(fmt::format("{}{}", take_line, text));
           }});
  const AgentOptions options{.paths = paths,
                             .start = start,
                             .lock_id = lock.lock_id(),
                             .world = world,
                             .rendezvous = {.host = address, .port = rendezvous_port(loaded.config)},
                             .max_restarts = loaded.config.supervise.max_restarts,
                             .heartbeat = loaded.config.supervise.heartbeat,
                             .log = log,
                             .interrupts = interrupts,
                             .holds_lock = [&lock] { return !lock.lost(); },
                             .stages = loaded.config.parallel.pipeline,
                             .ended =
                                 [&](ExitCode code, const std::string& reason) {
                                   end_of_run.tell(code, reason, [&log](const std::string& text) { log.warn(text); });
                                 }};
  try {
    return run_agent(options);
  } catch (const std::exception& error) {
    // No worker lives. Why is told by whoever turns it into an exit code.
    options.ended(run_guarded([]() -> ExitCode { throw; }).code, error.what());
    throw;
  }
}

// One host with launch.ranks_per_node has that many ranks; without, as many as the degrees say.
std::int64_t world_of_one_host(const LoadedConfig& loaded) {
  try {
    return lay_out_nodes(loaded.config.parallel, loaded.config.launch, 1, std::numeric_limits<std::int64_t>::max())
        .world();
  } catch (const UserError& error) {
    throw UserError(loaded.located(error.what()));
  }
}

ExitCode run_config(const RunArguments& arguments) {
  if (arguments.print_directory) return print_directory(arguments);
  block_interrupt_signals();
  const InterruptWatcher interrupts;
  if (const std::optional<LauncherPlace> place = detect_launcher()) {
    const LaunchedCommand command{.config = arguments.config,
                                  .overrides = arguments.overrides,
                                  .resume = arguments.resume,
                                  .place = *place,
                                  .interrupts = interrupts};
    return place->is_per_node ? run_as_node_agent(command) : run_as_launched_rank(command);
  }
  const LoadedConfig loaded = load_config(arguments.config, arguments.overrides);
  const RunPaths paths(std::filesystem::absolute(loaded.config.run.directory));
  const ResumeRequest resume = requested_resume(arguments.resume, paths);
  for (const std::string& notice : loaded.notices) write_message("notice: " + notice);
  const RunPlan plan = checked_plan(loaded, world_of_one_host(loaded));
  for (const std::string& notice : plan.notices) write_message("notice: " + notice);
  if (loaded.config.supervise.elastic_min_data)
    write_message("notice: supervise.elastic is for several nodes: where this one goes, the run ends");
  const std::int64_t world = plan.phases.front().mesh.world();
  refuse_too_large(loaded, plan, 0, world);
  notice_crowd(world);
  check_initial_weights(loaded.config);
  const LaunchConfig& launch = loaded.config.launch;
  const std::string address = launch.interface ? address_of_interface(*launch.interface) : "127.0.0.1";
  open_run_folder(paths, resume);
  const ExitCode code = run_as_agent(loaded, paths, resume, world, address, interrupts);
  notice_never(resume, code);
  return code;
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
  command->add_flag("--print-directory", arguments->print_directory, "Print the run's folder, and start nothing");
  return [arguments] { return run_config(*arguments); };
}

}  // namespace scaletrain
