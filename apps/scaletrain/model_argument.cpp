#include "model_argument.h"

#include <CLI/CLI.hpp>

namespace scaletrain {

void ModelArgument::declare(CLI::App& command) {
  command.add_option("model", path, "A checkpoint, a run folder (its newest checkpoint) or a Hugging Face folder")
      ->required();
  command
      .add_option("--tokenizer", tokenizer,
                  "How a Hugging Face model's text is read: bytes, or ids (token ids separated by spaces)")
      ->check(CLI::IsMember({"bytes", "ids"}));
}

OpenedModel::OpenedModel(const ModelArgument& argument)
    : backend(make_cpu_backend({})),
      stream(backend->make_stream()),
      loaded(locate_model(argument.path), *backend, *stream,
             argument.tokenizer == "bytes" ? TokenizerKind::bytes : TokenizerKind::ids) {}

}  // namespace scaletrain
