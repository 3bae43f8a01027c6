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
#include "base/numbers/checked.h"
#include "base/text.h"
#include "commands.h"
#include "data/dataset.h"
#include "infer/evaluate.h"
#include "model_argument.h"
#include "option_checks.h"
#include "telemetry/count_progress.h"
#include "telemetry/progress.h"

namespace scaletrain {

namespace {

struct EvaluateArguments {
  ModelArgument model;
  std::vector<std::string> data;
  std::int64_t batches = 0;
  std::int64_t micro_batch = 8;
  bool json = false;
};

struct NamedSet {
  std::string name;
  std::unique_ptr<ValidationSet> set;
};

std::vector<NamedSet> open_sets(const EvaluateArguments& arguments, LoadedModel& model) {
  const Config& config = model.config();
  const DataOptions options{.vocab = model.transformer().spec().vocab,
                            .context = model.transformer().spec().context,
                            .seed = 0,
                            .report = write_message,
                            // The one in the config is of the run, which may be somebody else's.
                            .caches_anywhere = true};
  std::vector<ValidationConfig> sets;
  for (const std::string& path : arguments.data) {
    ValidationConfig& set = sets.emplace_back();
    set.name = path;
    set.path = std::filesystem::absolute(path).string();
  }
  const bool own = sets.empty();
  if (own) sets = config.data.validation;
  if (sets.empty()) throw UserError("the model's config names no validation set: give --data PATH");
  std::vector<NamedSet> opened;
  for (std::size_t i = 0; i < sets.size(); ++i)
    opened.push_back({sets[i].name, open_validation_set(sets[i], config.data, model.tokenizer(), options,
                                                        own ? fmt::format("data.validation.{}", i) : "--data")});
  return opened;
}

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

// Of a set of the config, how many of its samples the run's own evaluations measure.
std::int64_t samples_of_run(const Config& config, std::int64_t all) {
  const std::int64_t some = try_mul(config.evaluate.batches, config.train.global_batch).value_or(all);
  return some == 0 ? all : std::min(some, all);
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

ExitCode evaluate(const EvaluateArguments& arguments) {
  OpenedModel model(arguments.model);
  nlohmann::json answer = nlohmann::json::array();
  std::string text;
  for (const NamedSet& named : open_sets(arguments, model.loaded)) {
    const std::int64_t every = std::numeric_limits<std::int64_t>::max();
    const std::int64_t all = named.set->num_samples();
    const std::int64_t samples = std::min(
        all, arguments.batches > 0 ? try_mul(arguments.batches, arguments.micro_batch).value_or(every) : every);
    const EvaluationResult result = evaluate_set(model.loaded, named, samples, arguments.micro_batch);
    if (!std::isfinite(result.loss))
      throw InputError(
          fmt::format("{}: the loss of {} is {}: its weights are damaged or its training diverged; take an "
                      "older checkpoint",
                      named.name, model.path.string(), std::isnan(result.loss) ? "not a number" : "infinite"));
    answer.push_back({{"model", model.path.string()},
                      {"step", nullptr},
                      {"dataset", named.name},
                      {"loss", result.loss},
                      {"perplexity", std::exp(result.loss)},
                      {"samples", samples},
                      {"samples_in_run", nullptr},
                      {"tokens", result.tokens}});
    if (arguments.data.empty()) answer.back()["samples_in_run"] = samples_of_run(model.loaded.config(), all);
    if (const auto step = model.loaded.step()) answer.back()["step"] = *step;
    text += fmt::format("{}: loss {:.7g} (perplexity {:.4g}) over {} tokens\n", named.name, result.loss,
                        std::exp(result.loss), grouped(result.tokens));
    if (arguments.data.empty()) text += difference_from_run(model.loaded.config(), samples, all);
  }
  write_output(arguments.json ? answer.dump(2) + "\n" : text);
  return ExitCode::finished;
}

}  // namespace

Command add_evaluate(CLI::App& app) {
  auto arguments = std::make_shared<EvaluateArguments>();
  CLI::App* command = app.add_subcommand("evaluate", "The loss of a checkpoint or Hugging Face model on data");
  arguments->model.declare(*command);
  command
      ->add_option("--data", arguments->data,
                   "Text, JSONL or token files (repeatable); else the config's validation sets")
      ->type_name("PATH")
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
