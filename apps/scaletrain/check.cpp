// scaletrain check: the plan of a run, without starting anything.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "backend/backend.h"
#include "base/error.h"
#include "commands.h"
#include "config/load.h"
#include "launch/machine.h"
#include "plan/describe.h"
#include "train/assembly.h"

namespace scaletrain {

namespace {

struct CheckArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::int64_t world = 0;
  bool json = false;
};

ExitCode check_config(const CheckArguments& arguments) {
  const LoadedConfig loaded =
      load_config(arguments.config, arguments.overrides, process_environment, {.allow_unsupported = true});
  for (const std::string& notice : loaded.notices) write_message("notice: " + notice);
  const auto world = arguments.world > 0 ? std::optional(arguments.world) : std::nullopt;
  const RunPlan plan = plan_for(loaded.config, world);
  const PlanDescription description = describe_plan(loaded.config, plan, cpu_workspace_bytes(available_processors()));
  write_output(arguments.json ? description.json + "\n" : description.text);
  if (loaded.unsupported.empty()) return ExitCode::finished;
  std::string text = "this is the plan, but it cannot be run yet:";
  for (const std::string& problem : loaded.unsupported) text += "\n" + problem;
  throw UserError(text);
}

}  // namespace

Command add_check(CLI::App& app) {
  auto arguments = std::make_shared<CheckArguments>();
  CLI::App* command = app.add_subcommand("check", "Validate a config; print layout, schedule and memory");
  command->add_option("config", arguments->config, "The YAML file")->required();
  command->add_option("--set", arguments->overrides, "Override a key: --set train.steps=100 (repeatable)")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->add_option("--world", arguments->world, "Plan for this many ranks")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  command->add_flag("--json", arguments->json, "One JSON object on standard output");
  return [arguments] { return check_config(*arguments); };
}

}  // namespace scaletrain
