// scaletrain evaluate: the loss of a model on data.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/numbers/checked.h"
#include "base/text.h"
#include "checkpoint/format/manifest.h"
#include "commands.h"
#include "data/dataset.h"
#include "data/tasks/choice_task.h"
#include "evaluate_report.h"
#include "evaluation_sets.h"
#include "infer/evaluate.h"
#include "infer/measure_task.h"
#include "model_argument.h"
#include "option_checks.h"
#include "telemetry/count_progress.h"
#include "telemetry/progress.h"

namespace scaletrain {

namespace {

struct EvaluateArguments {
  std::vector<std::string> models;
  ModelArgument model;  // of each, but for its path
  std::vector<std::string> data;
  RecordsArgument records;         // of --data
  std::vector<std::string> tasks;  // NAME=FILE
  std::int64_t batches = 0;
  std::int64_t micro_batch = 8;
  bool json = false;
};

EvaluationResult evaluate_set(LoadedModel& model, const NamedSet& named, std::int64_t samples,
                              std::int64_t micro_batch) {
  const bool live = progress_options_for(stderr, 0, 1).live;
  CountProgress progress(stderr, {.what = named.name, .unit = "samples", .live = live});
  return evaluate_model(model, *named.set, samples, micro_batch,
                        [&progress](std::int64_t done, std::int64_t all) { progress.update(done, all); });
}

std::string grouped(std::int64_t count) {
  return grouped_digits(static_cast<std::uint64_t>(count));
}

// Two losses of one set that are not over the same samples are no measure of progress.
std::string difference_from_run(const Config& config, std::int64_t samples, std::int64_t all) {
  const std::int64_t in_run = samples_of_run(config, all);
  if (samples == in_run) return {};
  const auto share = [all](std::int64_t some) {
    return some == all ? fmt::format("all {} samples", grouped(all))
                       : fmt::format("the first {} of {} samples", grouped(some), grouped(all));
  };
  return fmt::format("    over {}; the run's own evaluations are over {} (evaluate.batches: {})\n", share(samples),
                     share(in_run), config.evaluate.batches);
}

SetReport report_on(const EvaluateArguments& arguments, OpenedModel& model, const NamedSet& named) {
  const std::int64_t every = std::numeric_limits<std::int64_t>::max();
  const std::int64_t all = named.set->num_samples();
  const std::int64_t samples =
      std::min(all, arguments.batches > 0 ? try_mul(arguments.batches, arguments.micro_batch).value_or(every) : every);
  const EvaluationResult result = evaluate_set(model.loaded, named, samples, arguments.micro_batch);
  if (!std::isfinite(result.loss))
    throw InputError(
        fmt::format("{}: the loss of {} is {}: its weights are damaged or its training diverged; take an "
                    "older checkpoint",
                    named.name, model.path.string(), std::isnan(result.loss) ? "not a number" : "infinite"));
  SetReport report{.model = model.path.string(),
                   .step = model.loaded.step(),
                   .set = named.name,
                   .result = result,
                   .documents = data_config_of(arguments.records.value(), model.loaded.config()).documents,
                   .samples = samples,
                   .samples_in_run = {},
                   .difference = {}};
  if (arguments.data.empty()) {
    report.samples_in_run = samples_of_run(model.loaded.config(), all);
    report.difference = difference_from_run(model.loaded.config(), samples, all);
  }
  return report;
}

// What --task names.
struct NamedTask {
  std::string name, file;
};
std::vector<NamedTask> named_tasks(const EvaluateArguments& arguments) {
  std::vector<NamedTask> tasks;
  for (const std::string& text : arguments.tasks) {
    const std::size_t at = text.find('=');
    if (at == 0 || at == std::string::npos || at + 1 == text.size())
      throw UserError(fmt::format("--task: {} is not NAME=FILE", quoted(text)));
    const NamedTask task{text.substr(0, at), text.substr(at + 1)};
    if (std::any_of(tasks.begin(), tasks.end(), [&](const NamedTask& other) { return other.name == task.name; }))
      throw UserError(fmt::format("--task: {} is there twice; give each a name of its own", task.name));
    if (!path_exists(task.file)) throw InputError(fmt::format("--task {}: {}: no such file", task.name, task.file));
    tasks.push_back(task);
  }
  return tasks;
}

// What --task names; without it and without --data those of the model's own config.
std::vector<ChoiceTask> open_tasks(const EvaluateArguments& arguments, const std::vector<NamedTask>& named,
                                   const LoadedModel& model) {
  std::vector<ChoiceTask> tasks;
  const auto open = [&](const std::string& name, const std::string& file, const std::string& where) {
    tasks.emplace_back(name, file, model.tokenizer(), model.transformer().spec().context, where);
  };
  for (const NamedTask& task : named) open(task.name, task.file, "--task " + task.name);
  if (!named.empty() || !arguments.data.empty()) return tasks;
  const std::vector<TaskConfig>& own = model.config().evaluate.tasks;
  for (std::size_t i = 0; i < own.size(); ++i) open(own[i].name, own[i].path, fmt::format("evaluate.tasks.{}", i));
  return tasks;
}

TaskReport report_on(const EvaluateArguments& arguments, OpenedModel& model, const ChoiceTask& task) {
  const bool live = progress_options_for(stderr, 0, 1).live;
  CountProgress progress(stderr, {.what = task.name(), .unit = "choices", .live = live});
  const std::vector<double> log_likelihoods =
      measure_rows(model.loaded, task, arguments.micro_batch,
                   [&progress](std::int64_t done, std::int64_t all) { progress.update(done, all); });
  for (const double value : log_likelihoods)
    if (!std::isfinite(value))
      throw InputError(fmt::format("{}: a log-likelihood of {} is {}: its weights are damaged or its training diverged",
                                   task.name(), model.path.string(), value));
  return {.model = model.path.string(),
          .step = model.loaded.step(),
          .task = task.name(),
          .score = task.score(log_likelihoods),
          .num_cut = task.num_cut()};
}

bool has_adapters(const std::string& path) {
  const LocatedModel located = locate_model(path);
  return located.source == ModelSource::checkpoint && read_manifest(located.path).base.has_value();
}

// Before any of them is measured.
void check_base(const EvaluateArguments& arguments) {
  if (!arguments.model.base.empty() && std::none_of(arguments.models.begin(), arguments.models.end(), has_adapters))
    throw UserError(fmt::format("--base: {} has all of its model, and needs no other; remove the option",
                                arguments.models.front()));
}

bool is_folder_of_others(const std::string& path) {
  return locate_model(path).source == ModelSource::hugging_face;
}

// --tokenizer is of the Hugging Face folders among several models; of checkpoints alone it is refused. --base is of
// those that have adapters.
ModelArgument argument_of(const EvaluateArguments& arguments, const std::string& path) {
  ModelArgument argument = arguments.model;
  argument.path = path;
  if (!argument.tokenizer.empty() && !is_folder_of_others(path) &&
      std::any_of(arguments.models.begin(), arguments.models.end(), is_folder_of_others))
    argument.tokenizer.clear();
  if (!argument.base.empty() && !has_adapters(path)) argument.base.clear();
  return argument;
}

[[noreturn]] void refuse_without_data(const std::string& path) {
  throw UserError(fmt::format("{}: {} names no validation set and no task: give --data PATH, or --task NAME=FILE", path,
                              is_folder_of_others(path) ? "a Hugging Face folder" : "its config"));
}

ExitCode evaluate(const EvaluateArguments& arguments) {
  arguments.records.check();
  const std::vector<NamedTask> tasks = named_tasks(arguments);
  // Tasks alone, where no data is asked for.
  const bool measures_sets = tasks.empty() || !arguments.data.empty();
  // Before the first of them is read and measured for nothing.
  for (const std::string& path : arguments.models) locate_model(path);
  if (measures_sets && arguments.data.empty())
    for (const std::string& path : arguments.models)
      if (is_folder_of_others(path)) refuse_without_data(path);
  check_base(arguments);
  std::vector<SetReport> reports;
  std::vector<TaskReport> task_reports;
  for (const std::string& path : arguments.models) {
    std::vector<NamedSet> sets;
    std::vector<ChoiceTask> measured;
    OpenedModel model(argument_of(arguments, path), [&](LoadedModel& found) {
      measured = open_tasks(arguments, tasks, found);
      if (measures_sets) sets = open_sets(arguments.data, found, arguments.records.value());
      if (sets.empty() && measured.empty()) refuse_without_data(path);
    });
    for (const ChoiceTask& task : measured) task_reports.push_back(report_on(arguments, model, task));
    for (const NamedSet& named : sets) reports.push_back(report_on(arguments, model, named));
  }
  if (!arguments.json) {
    const std::string sets = text_of(reports);
    const bool are_apart = !sets.empty() && !task_reports.empty() && arguments.models.size() > 1;
    write_output(sets + (are_apart ? "\n" : "") + text_of(task_reports));
    return ExitCode::finished;
  }
  nlohmann::json answer = nlohmann::json::array();
  for (const SetReport& report : reports) answer.push_back(json_of(report));
  for (const TaskReport& report : task_reports) answer.push_back(json_of(report));
  write_output(answer.dump(2) + "\n");
  return ExitCode::finished;
}

}  // namespace

Command add_evaluate(CLI::App& app) {
  auto arguments = std::make_shared<EvaluateArguments>();
  CLI::App* command = app.add_subcommand("evaluate", "The loss of checkpoints and Hugging Face models on data");
  arguments->model.declare(*command, &arguments->models);
  command
      ->add_option("--data", arguments->data,
                   "Text, JSONL or token files (repeatable); else the config's validation sets")
      ->type_name("PATH")
      ->allow_extra_args(false);
  arguments->records.declare(*command);
  command
      ->add_option("--task", arguments->tasks,
                   "Multiple choice by log-likelihood: a JSONL file of `question`, `choices`, `answer` (repeatable), a "
                   "choice behind its question and a space; then no loss but on --data. Without --task and --data: the "
                   "config's tasks too")
      ->type_name("NAME=FILE")
      ->allow_extra_args(false);
  command->add_option("--batches", arguments->batches, "At most so many micro-batches per set; 0: all")
      ->transform(whole_number(0))
      ->capture_default_str();
  command->add_option("--micro-batch", arguments->micro_batch, "Samples computed at once")
      ->transform(whole_number(1, 4096))
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "A JSON array on standard output");
  return [arguments] { return evaluate(*arguments); };
}

}  // namespace scaletrain
