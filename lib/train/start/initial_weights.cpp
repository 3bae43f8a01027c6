#include "train/start/initial_weights.h"

#include <fmt/format.h>

#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/catalog.h"
#include "checkpoint/hugging_face/hugging_face.h"
#include "config/keys/keys.h"
#include "train/start/run_folder.h"

namespace scaletrain {

namespace {

// The config's model must be the folder's.
void refuse_other_model(const HuggingFaceModel& folder, const ModelSpec& model) {
  const ModelConfig& config = folder.model_config();
  const ModelSpec theirs = make_model_spec(config, config.vocab.value_or(model.vocab));
  ModelSpec comparable = model;
  comparable.context = theirs.position == PositionKind::rope ? theirs.context : comparable.context;
  std::string differences;
  const auto compare = [&differences](std::string_view key, const auto& ours, const auto& other) {
    if (!(ours == other))
      differences += fmt::format("\n  model.{}: {} in the config, {} in the folder", key, ours, other);
  };
  compare("layers", comparable.layers, theirs.layers);
  compare("hidden", comparable.hidden, theirs.hidden);
  compare("heads", comparable.heads, theirs.heads);
  compare("kv_heads", comparable.kv_heads, theirs.kv_heads);
  compare("ffn_hidden", comparable.ffn_hidden, theirs.ffn_hidden);
  compare("context", comparable.context, theirs.context);
  compare("vocab", comparable.vocab, theirs.vocab);
  compare("norm", to_text(comparable.norm), to_text(theirs.norm));
  compare("norm_epsilon", comparable.norm_epsilon, theirs.norm_epsilon);
  compare("activation", to_text(comparable.activation), to_text(theirs.activation));
  compare("position", to_text(comparable.position), to_text(theirs.position));
  if (comparable.position == PositionKind::rope) compare("rope_theta", comparable.rope_theta, theirs.rope_theta);
  compare("bias", comparable.bias, theirs.bias);
  compare("tie_embeddings", comparable.tie_embeddings, theirs.tie_embeddings);
  if (differences.empty()) return;
  throw UserError(fmt::format("model.init.from: {} holds another model:{}\nSet these keys to the folder's values",
                              folder.path().string(), differences));
}

}  // namespace

void check_initial_weights(const Config& config, const ModelSpec& model) {
  const auto& from = config.model.init.from;
  if (!from || !list_checkpoints(RunPaths(config.run.directory).checkpoints()).empty()) return;
  if (!path_exists(*from))
    throw UserError(
        fmt::format("model.init.from: no such folder: {}; a run that has a checkpoint no longer needs it, this one has "
                    "none",
                    *from));
  try {
    refuse_other_model(HuggingFaceModel(*from), model);
  } catch (const FileAccessError& refused) {
    throw FileAccessError(fmt::format("model.init.from: {}; have the system let this user read it", refused.what()));
  } catch (const InputError& error) {
    throw InputError(
        fmt::format("model.init.from: {}; a Hugging Face folder of a GPT-2 or Llama model is expected", error.what()));
  }
}

void load_initial_weights(const std::string& folder, const ModelSpec& model, ParamStore& store, Stream& stream) {
  const HuggingFaceModel theirs(folder);
  refuse_other_model(theirs, model);
  theirs.load(store, stream);
}

}  // namespace scaletrain
