// What evaluate and generate share: the model named on the command line, opened on this machine's processor.
#pragma once

#include <filesystem>
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
  std::string tokenizer;  // empty: not given
  void declare(CLI::App& command);
};

// UserError if --tokenizer is given for a checkpoint: that brings its own. Of a run folder the newest checkpoint
// whose manifest is whole; which one that is, and which were passed over and why, is said on standard error.
struct OpenedModel {
  explicit OpenedModel(const ModelArgument& argument);
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
  std::filesystem::path path;  // of the model itself
  LoadedModel loaded;

 private:
  LoadedModel load(const ModelArgument& argument);
};

}  // namespace scaletrain
