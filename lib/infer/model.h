// A model that can be evaluated and sampled from: weights out of one of our checkpoints or a Hugging Face folder, no
// gradients, no optimizer state, one rank.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/error.h"
#include "checkpoint/catalog.h"
#include "checkpoint/load.h"
#include "config/config.h"
#include "data/tokens/tokenizer.h"
#include "nn/transformer.h"
#include "store/param_store.h"

namespace scaletrain {

// What a path on the command line stands for: a checkpoint, a run folder (its newest usable checkpoint) or a Hugging
// Face folder.
enum class ModelSource { checkpoint, hugging_face };
struct LocatedModel {
  ModelSource source = ModelSource::checkpoint;
  std::filesystem::path path;
  // Of a run folder: all that it has, newest first; and those whose manifests are damaged.
  std::vector<CatalogEntry> checkpoints{};
  std::vector<CatalogEntry> damaged{};
  // Of a checkpoint of adapters: the folder of their base model. Empty: where the checkpoint says it was.
  std::filesystem::path base{};
  // Of a checkpoint: the averages of train.ema in place of the weights.
  bool averages = false;
};
// InputError that says what was looked for if it is none of them; FileAccessError if the path, or a checkpoint of a run
// folder, which may be the newest, cannot be read now.
LocatedModel locate_model(const std::filesystem::path& path);

// What of a model says how it reads text; of others, which outlive it.
struct TextModel {
  const Config& config;
  const Tokenizer& tokenizer;
  std::int64_t vocab = 0;
};

// The tokenizer that a checkpoint carries, whose config that is. InputError where its files are missing or damaged.
std::unique_ptr<Tokenizer> tokenizer_of(const Checkpoint& checkpoint, const Config& config);

// The model that a checkpoint's adapters are for is missing, or another one.
class BaseModelError : public InputError {
 public:
  using InputError::InputError;
};

class LoadedModel {
 public:
  // Reads and verifies the weights. The backend and stream must outlive it. Of a Hugging Face
  // folder `hugging_face_tokenizer` says how text is read: as bytes, as a list of ids, or by the folder's tokenizer
  // (bpe, sentencepiece; InputError where that cannot be). Nothing: by the folder's tokenizer where there is one that
  // can be used, else as ids. `before_weights` is called when all but the weights is there, so that what is refused is
  // refused before a large model is read.
  using BeforeWeights = std::function<void(LoadedModel&)>;
  LoadedModel(const LocatedModel& location, Backend& backend, Stream& stream,
              std::optional<TokenizerKind> hugging_face_tokenizer = TokenizerKind::ids,
              const BeforeWeights& before_weights = {});
  ~LoadedModel();
  LoadedModel(LoadedModel&&) noexcept;
  LoadedModel& operator=(LoadedModel&&) noexcept;

  const Transformer& transformer() const;
  ParamStore& store();
  const Tokenizer& tokenizer() const;
  TextModel text() const { return {config(), tokenizer(), transformer().spec().vocab}; }
  // For the user: why the folder's tokenizer is not used, where nobody said how text is read. Empty: nothing to say.
  const std::string& tokenizer_notice() const;
  // For the user: why the context is shorter than the folder's. Empty: it is not.
  const std::string& context_notice() const;
  // A checkpoint's own config; for a Hugging Face folder the defaults with its model section.
  const Config& config() const;
  std::optional<std::int64_t> step() const;  // of a checkpoint
  Backend& backend();
  Stream& stream();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace scaletrain
