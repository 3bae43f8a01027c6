// scaletrain run: the agent of its place.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "commands.h"
#include "config/load.h"
#include "host/launcher.h"
#include "host/process/signals.h"
#include "run/agent.h"
#include "train/start/initial_weights.h"

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
  const auto load = [&](FolderModelLook look) {
    return load_config(
        arguments.config, arguments.overrides, process_environment,
        {.allow_unsupported = true, .missing_paths = MissingPaths::ignore, .look_at_model = std::move(look)});
  };
  // A folder that brings the model may be gone, and without it the layout may not fit what stands for the model.
  const LoadedConfig loaded = [&] {
    try {
      return load(look_at_folder_model);
    } catch (const UserError&) {
      return load({});
    }
  }();
  write_output(std::filesystem::absolute(loaded.config.run.directory).string() + "\n");
  return ExitCode::finished;
}

ExitCode run_config(const RunArguments& arguments) {
  if (arguments.print_directory) return print_directory(arguments);
  block_interrupt_signals();
  const InterruptWatcher interrupts;
  return run_as_agent({.config = arguments.config,
                       .overrides = arguments.overrides,
                       .resume = arguments.resume,
                       .place = detect_launcher().value_or(lone_place()),
                       .interrupts = interrupts});
}

}  // namespace

Command add_run(CLI::App& app) {
  auto arguments = std::make_shared<RunArguments>();
  CLI::App* command = app.add_subcommand("run", "Train what the config says; go on where an earlier start ended");
  command->add_option("config", arguments->config, "The YAML file")->required();
  command->add_option("--set", arguments->overrides, "Override a key: --set train.steps=100 (repeatable)")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command
      ->add_option("--resume", arguments->resume,
                   "auto: from the newest checkpoint if there is one; never: refuse if there is one; required: refuse "
                   "if there is none; or a checkpoint's folder")
      ->type_name("auto|never|required|CHECKPOINT");
  command->add_flag("--print-directory", arguments->print_directory, "Print the run's folder, and start nothing");
  return [arguments] { return run_config(*arguments); };
}

}  // namespace scaletrain
