#include "infer/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"
#include "checkpoint/hugging_face/adapter_import.h"
#include "checkpoint/hugging_face/hugging_face.h"
#include "checkpoint/merge_adapters.h"
#include "config/load.h"
#include "data/tokens/bpe/bpe_tokenizer.h"
#include "data/tokens/sentencepiece/sentencepiece_tokenizer.h"

namespace scaletrain {

namespace fs = std::filesystem;

namespace {

// The tokenizer a checkpoint carries: its files lie beside the manifest, wherever that now is.
TokenizerConfig carried_tokenizer(const Config& config, const Checkpoint& checkpoint) {
  TokenizerConfig tokenizer = config.data.tokenizer;
  if (!tokenizer.path) return tokenizer;
  const std::vector<std::string>& files = checkpoint.manifest().tokenizer_files;
  if (files.empty()) throw InputError(fmt::format("{}: the tokenizer's files are missing", checkpoint.path().string()));
  tokenizer.path = (checkpoint.path() / files.front()).string();  // one file, or the first of two that know each other
  return tokenizer;
}

// By the tokenizer files of a Hugging Face folder.
std::unique_ptr<Tokenizer> folder_tokenizer(const fs::path& folder, TokenizerKind kind, std::int64_t model_vocab) {
  std::unique_ptr<Tokenizer> tokenizer;
  if (kind == TokenizerKind::sentencepiece) {
    tokenizer = std::make_unique<SentencePieceTokenizer>(folder, std::nullopt);
  } else {
    tokenizer = std::make_unique<BpeTokenizer>(read_bpe_spec(folder), std::nullopt);
  }
  if (tokenizer->vocab_size() > model_vocab)
    throw InputError(fmt::format("{}: the tokenizer has {} tokens, the model's vocabulary {}",
                                 tokenizer->files().front().string(), tokenizer->vocab_size(), model_vocab));
  return tokenizer;
}

}  // namespace

LocatedModel locate_model(const fs::path& path) {
  if (!path_exists(path)) throw InputError(fmt::format("{}: no such file or folder", path.string()));
  if (path_exists(path / "manifest.json")) return {ModelSource::checkpoint, path};
  if (is_hugging_face_folder(path)) return {ModelSource::hugging_face, path};
  if (path_exists(path / "checkpoints")) {
    LocatedModel located;
    for (const CatalogEntry& entry : list_readable_checkpoints(path / "checkpoints")) {
      (entry.problem.empty() ? located.checkpoints : located.damaged).push_back(entry);
    }
    if (!located.checkpoints.empty()) {
      located.path = located.checkpoints.front().path;
      return located;
    }
    throw InputError(fmt::format("{}: the run folder holds no checkpoint that can be read", path.string()));
  }
  if (is_adapter_folder(path))
    throw InputError(
        fmt::format("{}: holds adapters of peft's (adapter_config.json) and no model: merge them into their base with "
                    "peft's merge_and_unload(), or train on from them with finetune.lora.from",
                    path.string()));
  throw InputError(
      fmt::format("{}: neither a checkpoint (manifest.json), a Hugging Face model (config.json) nor a run folder "
                  "(checkpoints/)",
                  path.string()));
}

std::unique_ptr<Tokenizer> tokenizer_of(const Checkpoint& checkpoint, const Config& config) {
  try {
    return make_tokenizer(carried_tokenizer(config, checkpoint), config.model.vocab);
  } catch (const UserError& error) {  // the manifest is no text of the user's
    throw InputError(fmt::format("{}: config: {}", (checkpoint.path() / "manifest.json").string(), error.what()));
  }
}

struct LoadedModel::Impl {
  Backend* backend = nullptr;
  Stream* stream = nullptr;
  Config config;
  std::optional<std::int64_t> step;
  fs::path base_folder;  // of adapters, where it is not where the checkpoint says
  std::unique_ptr<Tokenizer> tokenizer;
  std::string tokenizer_notice;
  std::string context_notice;
  std::unique_ptr<Transformer> transformer;
  ParamTable table;
  ShardLayout layout;
  std::unique_ptr<ParamStore> store;

  // vocab: the tokenizer's size, used where the config says auto.
  // A checkpoint's config may claim any size: with its manifest given, nothing is allocated that the files do not hold.
  void build(const std::string& where, std::int64_t vocab, const Manifest* manifest) {
    if (!base_folder.empty() && !config.finetune.lora)
      throw UserError(fmt::format("--base: {} has all of its model, and needs no other; remove the option", where));
    const ModelSpec spec = make_model_spec(config.model, config.model.vocab.value_or(vocab));
    transformer = std::make_unique<Transformer>(spec);
    table = make_param_table(spec, config.model.init);
    if (manifest != nullptr) {
      if (config.finetune.lora)
        check_adapters(*manifest, table, *config.finetune.lora, where);
      else
        check_shapes(*manifest, where);
    }
    std::vector<int> units(table.units().size());
    std::iota(units.begin(), units.end(), 0);
    layout = ShardLayout(table, units, Mesh(), MeshPosition{});
    try {
      store = std::make_unique<ParamStore>(
          *backend, table, layout,
          ParamStore::Options{.state_names = {}, .gradients = false, .dtype = backend->compute_type()});
    } catch (const std::bad_alloc&) {
      throw InputError(fmt::format(
          "{}: not enough memory for its {} parameters, which need {}", where,
          grouped_digits(static_cast<std::uint64_t>(table.num_parameters())),
          bytes_text(static_cast<std::uint64_t>(table.num_parameters()) * size_of(backend->compute_type()))));
    }
  }

  void check_shapes(const Manifest& manifest, const std::string& where) const {
    for (const Parameter& parameter : table.parameters()) {
      if (parameter.tied_to) continue;
      const ManifestTensor* tensor = manifest.find(parameter.name);
      if (tensor == nullptr)
        throw InputError(fmt::format("{}: the manifest lists no tensor {}", where, quoted(parameter.name)));
      if (!(tensor->shape == parameter.shape))
        throw InputError(fmt::format("{}: tensor {} is {} in the manifest, but {} by its config", where,
                                     quoted(parameter.name), to_text(tensor->shape), to_text(parameter.shape)));
    }
    // A model that leaves tensors unused is another model than the one that was trained.
    for (const ManifestTensor& tensor : manifest.tensors)
      if (tensor.role != "slot" && table.find(tensor.name) == nullptr)
        throw InputError(fmt::format("{}: the model of the manifest's config has no tensor {}", where,
                                     quoted(std::string_view(tensor.name))));
  }

  void open_checkpoint(const fs::path& path, bool averages, const std::function<void()>& before_weights) {
    Checkpoint checkpoint(path);
    if (averages) checkpoint.use_averages();
    const std::string where = (path / "manifest.json").string() + ": config";
    config = parse_resolved_config(checkpoint.manifest().config, where);
    if (const auto problems = unsupported_values(config); !problems.empty())
      throw InputError(fmt::format("{}: {}", where, problems.front()));
    step = checkpoint.manifest().step;
    tokenizer = tokenizer_of(checkpoint, config);
    // The config may claim any size: nothing is built for more layers than the manifest has tensors.
    if (config.model.layers > static_cast<std::int64_t>(checkpoint.manifest().tensors.size()))
      throw InputError(fmt::format("{}: model.layers: {}, but the manifest lists only {} tensors", where,
                                   config.model.layers, checkpoint.manifest().tensors.size()));
    build(path.string(), tokenizer->vocab_size(), &checkpoint.manifest());
    before_weights();
    load_weights(checkpoint);
  }

  // Of a checkpoint of adapters, the base with them.
  void load_weights(const Checkpoint& checkpoint) {
    if (!config.finetune.lora) return checkpoint.load(*store, *stream, false);
    const BaseModel& base = *checkpoint.manifest().base;
    const std::string folder = base_folder.empty() ? base.path : base_folder.string();
    const std::string remedy = "; name the folder where it is now with --base";
    if (!path_exists(folder))
      throw BaseModelError(
          fmt::format("{}: the checkpoint's adapters need their base model, which is not in {} any more{}",
                      checkpoint.path().string(), folder, remedy));
    const HuggingFaceModel theirs(folder);
    if (const std::uint64_t content = theirs.content(std::max(1, backend->num_threads())); content != base.content)
      throw BaseModelError(fmt::format(
          "{}: the checkpoint's adapters were trained for other weights than those of {} (content {}, there "
          "{}){}",
          checkpoint.path().string(), folder, to_hex(base.content), to_hex(content), remedy));
    theirs.load(*store, *stream);
    merge_adapters(checkpoint, *config.finetune.lora, *store, *stream);
  }

  void open_folder_tokenizer(const fs::path& path, TokenizerKind kind) {
    tokenizer = folder_tokenizer(path, kind, *config.model.vocab);
    config.data.tokenizer.type = kind;
    config.data.tokenizer.path = path.string();
  }

  void open_asked_tokenizer(const fs::path& path, TokenizerKind kind) {
    try {
      open_folder_tokenizer(path, kind);
    } catch (const InputError& error) {
      throw InputError(
          fmt::format("{}; `--tokenizer ids` or `bytes` reads the model without it", std::string_view(error.what())));
    }
  }

  // The first of the folder's that can be used, if one can.
  void find_folder_tokenizer(const fs::path& path) {
    std::vector<TokenizerKind> kinds;
    if (holds_bpe_files(path)) kinds.push_back(TokenizerKind::bpe);
    if (holds_sentencepiece_file(path)) kinds.push_back(TokenizerKind::sentencepiece);
    std::string problem;
    std::string refused;
    for (const TokenizerKind kind : kinds) {
      try {
        open_folder_tokenizer(path, kind);
        break;
      } catch (const InputError& error) {
        problem = error.what();
        refused = to_text(kind);
      }
    }
    if (problem.empty()) return;
    tokenizer_notice =
        fmt::format("text is read {}, since the folder's tokenizer cannot be used (`--tokenizer {}` would refuse): {}",
                    tokenizer ? "by its tokenizer.model" : "as token ids", refused, problem);
  }

  void open_hugging_face(const fs::path& path, std::optional<TokenizerKind> asked,
                         const std::function<void()>& before_weights) {
    const HuggingFaceModel model(path);
    config.model = model.model_config();
    if (const auto& window = model.shape().window; window == config.model.context)
      context_notice = fmt::format(
          "attention reaches {} tokens back in this model (sliding window), and beyond that is not supported: its "
          "context is taken as so many",
          *window);
    if (!asked) find_folder_tokenizer(path);
    if (asked == TokenizerKind::bpe || asked == TokenizerKind::sentencepiece) open_asked_tokenizer(path, *asked);
    if (!tokenizer) {
      config.data.tokenizer.type = asked.value_or(TokenizerKind::ids);
      tokenizer = make_tokenizer(config.data.tokenizer, config.model.vocab);
    }
    build(path.string(), *config.model.vocab, nullptr);
    before_weights();
    model.load(*store, *stream);
  }
};

LoadedModel::LoadedModel(const LocatedModel& location, Backend& backend, Stream& stream,
                         std::optional<TokenizerKind> hugging_face_tokenizer, const BeforeWeights& before_weights)
    : impl_(std::make_unique<Impl>()) {
  impl_->backend = &backend;
  impl_->stream = &stream;
  impl_->base_folder = location.base;
  const auto look = [&] {
    if (before_weights) before_weights(*this);
  };
  if (location.source == ModelSource::checkpoint) {
    impl_->open_checkpoint(location.path, location.averages, look);
  } else {
    if (location.averages)
      throw UserError(fmt::format("--ema: {} is a Hugging Face folder, which holds no averages; remove the option",
                                  location.path.string()));
    impl_->open_hugging_face(location.path, hugging_face_tokenizer, look);
  }
}

LoadedModel::~LoadedModel() = default;
LoadedModel::LoadedModel(LoadedModel&&) noexcept = default;
LoadedModel& LoadedModel::operator=(LoadedModel&&) noexcept = default;

const Transformer& LoadedModel::transformer() const {
  return *impl_->transformer;
}
ParamStore& LoadedModel::store() {
  return *impl_->store;
}
const Tokenizer& LoadedModel::tokenizer() const {
  return *impl_->tokenizer;
}
const std::string& LoadedModel::tokenizer_notice() const {
  return impl_->tokenizer_notice;
}
const std::string& LoadedModel::context_notice() const {
  return impl_->context_notice;
}
const Config& LoadedModel::config() const {
  return impl_->config;
}
std::optional<std::int64_t> LoadedModel::step() const {
  return impl_->step;
}
Backend& LoadedModel::backend() {
  return *impl_->backend;
}
Stream& LoadedModel::stream() {
  return *impl_->stream;
}

}  // namespace scaletrain
