// What evaluate and generate share: the model named on the command line, opened on this machine's processor.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"
#include "infer/model.h"

namespace CLI {
class App;
}

namespace scaletrain {

struct ModelArgument {
  std::string path;
  std::string tokenizer = "ids";
  void declare(CLI::App& command);
};

struct OpenedModel {
  explicit OpenedModel(const ModelArgument& argument);
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
  LoadedModel loaded;
};

}  // namespace scaletrain
