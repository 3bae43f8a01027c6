#include "model_argument.h"

#include <CLI/CLI.hpp>
#include <optional>

#include "base/error.h"
#include "commands.h"
#include "host/machine.h"
#include "model_choice.h"

namespace scaletrain {

namespace {

LocatedModel locate(const ModelArgument& argument) {
  LocatedModel located = choose_model(argument.path, argument.best, argument.averages);
  located.base = argument.base;
  if (located.source == ModelSource::checkpoint && !argument.tokenizer.empty())
    throw UserError("--tokenizer: " + located.path.string() +
                    " is a checkpoint of scaletrain, which has its own tokenizer; remove the option (it is for Hugging "
                    "Face folders)");
  return located;
}

// Nothing: not given.
std::optional<TokenizerKind> chosen_tokenizer(const ModelArgument& argument) {
  if (argument.tokenizer.empty()) return std::nullopt;
  if (argument.tokenizer == "bytes") return TokenizerKind::bytes;
  if (argument.tokenizer == "sentencepiece") return TokenizerKind::sentencepiece;
  return argument.tokenizer == "ids" ? TokenizerKind::ids : TokenizerKind::bpe;
}

}  // namespace

void ModelArgument::declare(CLI::App& command, std::vector<std::string>* several) {
  const std::string what =
      "A checkpoint, a run folder (its newest checkpoint) or a Hugging Face folder; computed on processors "
      "in fp32, whatever it was trained on and in";
  if (several == nullptr) {
    command.add_option("model", path, what)->required();
  } else {
    command.add_option("model", *several, what + "; several are measured one after the other")->required();
  }
  command
      .add_option("--tokenizer", tokenizer,
                  "How a Hugging Face model's text is read: bpe, by the folder's tokenizer.json or vocab.json and "
                  "merges.txt, sentencepiece, by its tokenizer.model (the default: the first of these that can be "
                  "used), bytes, or ids, which are token ids separated by spaces")
      ->check(CLI::IsMember({"bpe", "sentencepiece", "bytes", "ids"}));
  declare_best(command, best);
  declare_base(command, base);
  declare_averages(command, averages);
}

OpenedModel::OpenedModel(const ModelArgument& argument, const LoadedModel::BeforeWeights& before_weights)
    : backend(make_cpu_backend({.threads = available_processors()})),
      stream(backend->make_stream()),
      loaded(load(argument, before_weights)) {}

LoadedModel OpenedModel::load(const ModelArgument& argument, const LoadedModel::BeforeWeights& before_weights) {
  const LocatedModel located = locate(argument);
  path = located.path;
  const auto look = [&before_weights](LoadedModel& model) {
    for (const std::string& notice : {model.tokenizer_notice(), model.context_notice()})
      if (!notice.empty()) write_message("notice: " + notice);
    if (before_weights) before_weights(model);
  };
  return load_model(located, *backend, *stream, chosen_tokenizer(argument), look);
}

}  // namespace scaletrain
