#include "model_argument.h"

#include <CLI/CLI.hpp>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "host/machine.h"
#include "model_choice.h"

namespace scaletrain {

namespace {

LocatedModel locate(const ModelArgument& argument) {
  LocatedModel located = choose_model(argument.path, argument.best);
  if (located.source == ModelSource::checkpoint && !argument.tokenizer.empty())
    throw UserError("--tokenizer: " + located.path.string() +
                    " is a checkpoint of scaletrain, which has its own tokenizer; remove the option (it is for Hugging "
                    "Face folders)");
  return located;
}

}  // namespace

void ModelArgument::declare(CLI::App& command) {
  command
      .add_option("model", path,
                  "A checkpoint, a run folder (its newest checkpoint) or a Hugging Face folder; computed on processors "
                  "in fp32, whatever it was trained on and in")
      ->required();
  command
      .add_option("--tokenizer", tokenizer,
                  "How a Hugging Face model's text is read: bpe, by the folder's tokenizer.json (the default where "
                  "there is one), bytes, or ids, which are token ids separated by spaces")
      ->check(CLI::IsMember({"bpe", "bytes", "ids"}));
  declare_best(command, best);
}

TokenizerKind chosen_tokenizer(const ModelArgument& argument, const LocatedModel& located) {
  if (argument.tokenizer == "bytes") return TokenizerKind::bytes;
  if (argument.tokenizer == "ids") return TokenizerKind::ids;
  const bool has_tokenizer = path_exists(located.path / "tokenizer.json");
  return argument.tokenizer == "bpe" || has_tokenizer ? TokenizerKind::bpe : TokenizerKind::ids;
}

OpenedModel::OpenedModel(const ModelArgument& argument)
    : backend(make_cpu_backend({.threads = available_processors()})),
      stream(backend->make_stream()),
      loaded(load(argument)) {}

LoadedModel OpenedModel::load(const ModelArgument& argument) {
  const LocatedModel located = locate(argument);
  path = located.path;
  std::optional<LoadedModel> model;
  with_older_named(located, [&] { model.emplace(located, *backend, *stream, chosen_tokenizer(argument, located)); });
  return std::move(*model);
}

}  // namespace scaletrain
