// What evaluate and generate share: the model named on the command line, opened on this machine's processor.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "infer/model.h"

namespace CLI {
class App;
}

namespace scaletrain {

struct ModelArgument {
  std::string path;
  std::string tokenizer;  // empty: not given
  bool best = false;      // of a run folder its best checkpoint
  std::string base{};     // of adapters, where their model is; empty: not given
  bool averages = false;  // in place of the weights
  // several: where a command takes more than one model, their paths; `path` is then left empty.
  void declare(CLI::App& command, std::vector<std::string>* several = nullptr);
};

// UserError if --tokenizer is given for a checkpoint: that brings its own. Which checkpoint of a run folder it is:
// model_choice.h.
struct OpenedModel {
  // before_weights: as LoadedModel has it, behind the notices on how its text is read.
  explicit OpenedModel(const ModelArgument& argument, const LoadedModel::BeforeWeights& before_weights = {});
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
  std::filesystem::path path;  // of the model itself
  LoadedModel loaded;

 private:
  LoadedModel load(const ModelArgument& argument, const LoadedModel::BeforeWeights& before_weights);
};

}  // namespace scaletrain
