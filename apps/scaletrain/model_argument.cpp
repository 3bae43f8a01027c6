#include "model_argument.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "commands.h"
#include "launch/machine.h"

namespace scaletrain {

namespace {

LocatedModel locate(const ModelArgument& argument) {
  LocatedModel located = locate_model(argument.path);
  if (located.source == ModelSource::checkpoint && !argument.tokenizer.empty())
    throw UserError("--tokenizer: " + located.path.string() +
                    " is a checkpoint of scaletrain, which has its own tokenizer; remove the option (it is for Hugging "
                    "Face folders)");
  return located;
}

}  // namespace

void ModelArgument::declare(CLI::App& command) {
  command.add_option("model", path, "A checkpoint, a run folder (its newest checkpoint) or a Hugging Face folder")
      ->required();
  command
      .add_option("--tokenizer", tokenizer,
                  "How a Hugging Face model's text is read: bytes, or (the default) ids, which are token ids "
                  "separated by spaces")
      ->check(CLI::IsMember({"bytes", "ids"}));
}

OpenedModel::OpenedModel(const ModelArgument& argument)
    : backend(make_cpu_backend({.threads = available_processors()})),
      stream(backend->make_stream()),
      loaded(load(argument)) {}

LoadedModel OpenedModel::load(const ModelArgument& argument) {
  const TokenizerKind tokenizer = argument.tokenizer == "bytes" ? TokenizerKind::bytes : TokenizerKind::ids;
  const LocatedModel located = locate(argument);
  path = located.path;
  for (const std::string& problem : located.passed_over)
    write_message("warning: a damaged checkpoint is passed over: " + problem);
  LoadedModel model(located, *backend, *stream, tokenizer);
  if (path != std::filesystem::path(argument.path))
    write_message(fmt::format("using {} (step {})", path.string(), model.step().value_or(0)));
  return model;
}

}  // namespace scaletrain
