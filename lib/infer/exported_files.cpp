#include "infer/exported_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/format/confined_path.h"
#include "checkpoint/hugging_face/hugging_face_config.h"
#include "data/tokens/bpe/bpe_spec.h"
#include "data/tokens/bpe/byte_spelling.h"
#include "data/tokens/companion_files.h"
#include "data/tokens/sentencepiece/model_file.h"
#include "data/tokens/sentencepiece/sentencepiece_json.h"
#include "infer/exported_chat.h"
#include "infer/exported_tokens.h"

namespace scaletrain {

namespace fs = std::filesystem;

namespace {

using nlohmann::ordered_json;

constexpr std::uint64_t file_limit_bytes = 1ull << 30;

// Where the texts of special tokens and the class that reads the files stand.
struct TokenizerNames {
  std::string tokenizer_class;
  std::optional<std::string> begin, end, unknown;
};

ExportedFile read_file(const fs::path& path, std::string name) {
  return {std::move(name), read_text_file(path, file_limit_bytes)};
}

// The tokenizer's own files under the names by which a folder's readers find them.
std::vector<ExportedFile> own_files(const Tokenizer& tokenizer, TokenizerKind kind) {
  const std::vector<fs::path> paths = tokenizer.files();
  if (paths.empty()) return {};
  if (paths.size() == 1)
    return {read_file(paths.front(), kind == TokenizerKind::sentencepiece ? "tokenizer.model" : "tokenizer.json")};
  std::vector<ExportedFile> files;
  files.reserve(paths.size());
  for (const fs::path& path : paths)
    files.push_back(read_file(path, path.extension() == ".json" ? "vocab.json" : "merges.txt"));
  return files;
}

// Of somebody else's folder: whatever of a tokenizer is there, whether or not it can be used here.
std::vector<ExportedFile> folder_files(const fs::path& folder) {
  std::vector<ExportedFile> files;
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt"})
    if (path_exists(folder / name)) files.push_back(read_file(confined_path(folder, name, folder.string()), name));
  return files;
}

std::optional<std::string> text_of(const BpeSpec& spec, std::optional<std::int64_t> id) {
  const auto found =
      std::find_if(spec.added.begin(), spec.added.end(), [&](const AddedToken& token) { return token.id == id; });
  return found == spec.added.end() ? std::nullopt : std::optional(found->content);
}

TokenizerNames names_of_bpe(const std::vector<fs::path>& files, const SpecialTokens& tokens) {
  const BpeSpec spec = read_bpe_spec(files.front());
  const auto end = tokens.end.empty() ? std::nullopt : std::optional(tokens.end.front());
  const bool is_pair = files.size() > 1;
  return {.tokenizer_class = is_pair ? "GPT2Tokenizer" : "PreTrainedTokenizerFast",
          .begin = text_of(spec, tokens.begin),
          .end = text_of(spec, end),
          // GPT-2's class has one of its own otherwise, which the vocabulary may not have.
          .unknown = is_pair ? text_of(spec, end) : text_of(spec, spec.model.unknown)};
}

TokenizerNames names_of_sentencepiece(const SentencePieceModel& model, const SpecialTokens& tokens) {
  const auto text = [&](std::optional<std::int64_t> id) -> std::optional<std::string> {
    if (!id || *id >= std::ssize(model.pieces)) return std::nullopt;
    return model.pieces[static_cast<std::size_t>(*id)].text;
  };
  TokenizerNames names{.tokenizer_class = "PreTrainedTokenizerFast",
                       .begin = text(tokens.begin),
                       .end = text(tokens.end.empty() ? std::nullopt : std::optional(tokens.end.front())),
                       .unknown = std::nullopt};
  for (const SentencePieceModel::Piece& piece : model.pieces)
    if (piece.kind == SentencePieceModel::PieceKind::unknown) names.unknown = piece.text;
  return names;
}

std::string tokenizer_config_text(const TokenizerNames& names, std::int64_t context) {
  ordered_json config = {{"tokenizer_class", names.tokenizer_class}};
  if (names.begin) config["bos_token"] = *names.begin;
  if (names.end) config["eos_token"] = *names.end;
  if (names.unknown) config["unk_token"] = *names.unknown;
  config["model_max_length"] = context;
  config["clean_up_tokenization_spaces"] = false;
  return config.dump(2) + "\n";
}

// Writes what is missing into tokenizer_config.json, or the file.
void complete_tokenizer_config(ExportedText& text, const TokenizerNames& names, std::int64_t context) {
  ExportedFile* const file = find_exported(text.files, kTokenizerConfigFile);
  if (file == nullptr) {
    text.files.push_back({kTokenizerConfigFile, tokenizer_config_text(names, context)});
    return;
  }
  ordered_json config = ordered_json::parse(file->content);
  if (config.contains("tokenizer_class")) return;
  config["tokenizer_class"] = names.tokenizer_class;
  file->content = config.dump(2) + "\n";
}

void add_byte_tokenizer(ExportedText& text, std::int64_t context) {
  text.files.push_back({"tokenizer.json", byte_tokenizer_json()});
  complete_tokenizer_config(text,
                            {.tokenizer_class = "PreTrainedTokenizerFast",
                             .begin = std::nullopt,
                             .end = kByteEndName,
                             .unknown = std::nullopt},
                            context);
  text.folder_notice = fmt::format(
      "the model reads bytes: the tokenizer.json written for it has a token for each, 0 to 255, and {} as {}; text "
      "that "
      "is no UTF-8 only `--tokenizer bytes` reads as it is",
      kByteEndName, ByteTokenizer::kEndOfDocument);
}

// transformers makes merges of a tokenizer.model by ids, which are not the model's own where scores are in another
// order: it gets a tokenizer.json.
void add_sentencepiece(ExportedText& text, const fs::path& file, std::int64_t context) {
  if (find_exported(text.files, "tokenizer.json") != nullptr) return;
  const SentencePieceModel model = parse_sentencepiece_model(read_text_file(file, file_limit_bytes), file.string());
  std::optional<std::string> json = sentencepiece_json(model, text.tokens.begin);
  if (!json) {
    text.folder_notice =
        "no tokenizer.json is written, which programs without SentencePiece need: there is none for a model of this "
        "kind (not BPE, or with rules of normalisation); its tokenizer.model is there";
    return;
  }
  text.files.push_back({"tokenizer.json", *std::move(json)});
  complete_tokenizer_config(text, names_of_sentencepiece(model, text.tokens), context);
}

void add_names(ExportedText& text, const TextModel& model, TokenizerKind kind) {
  const std::vector<fs::path> files = model.tokenizer.files();
  if (kind == TokenizerKind::bpe) {
    complete_tokenizer_config(text, names_of_bpe(files, text.tokens), text.context);
  } else if (kind == TokenizerKind::sentencepiece) {
    add_sentencepiece(text, files.front(), text.context);
  }
}

void add_companions(ExportedText& text, const fs::path& folder) {
  std::vector<fs::path> paths = companion_files(folder);
  if (path_exists(folder / kGenerationConfigFile)) paths.push_back(folder / kGenerationConfigFile);
  for (const fs::path& path : paths) {
    const std::string name = path.filename().string();
    text.files.push_back(read_file(confined_path(folder, name, folder.string()), name));
    check_companion(name, text.files.back().content, path.string());
  }
}

void add_generation_config(ExportedText& text) {
  if (find_exported(text.files, kGenerationConfigFile) != nullptr) return;
  ordered_json config = ordered_json::object();
  if (text.tokens.begin) config["bos_token_id"] = *text.tokens.begin;
  if (!text.tokens.end.empty()) config["eos_token_id"] = ids_json(text.tokens.end);
  if (text.tokens.pad) config["pad_token_id"] = *text.tokens.pad;
  if (!config.empty()) text.files.push_back({kGenerationConfigFile, config.dump(2) + "\n"});
}

// The run's base model was made for more tokens than the run read at once, and rotated positions are learned nowhere.
void take_base_context(ExportedText& text, const ModelConfig& ours, const LocatedModel& location) {
  if (!ours.init.from || ours.position != PositionKind::rope) return;
  if (ours.rope_scaling.type == RopeScalingKind::llama3)
    text.context = std::max(text.context, ours.rope_scaling.original_context);
  const fs::path folder = location.base.empty() ? fs::path(*ours.init.from) : location.base;
  std::optional<std::int64_t> theirs;
  try {
    const ModelConfig base = read_hugging_face_shape(folder).model;
    const bool is_same = base.layers == ours.layers && base.hidden == ours.hidden &&
                         base.rope_theta == ours.rope_theta && base.rope_scaling == ours.rope_scaling;
    if (is_same) theirs = base.context;
  } catch (const InputError&) {  // moved, or another one by now: the weights do not need it
  }
  const std::string run = fmt::format("the run read at most {} tokens at once (model.context)", ours.context);
  if (!theirs) {
    text.notices.push_back(
        fmt::format("the context is {} tokens: {}, and its base model, which may have been made for more, is not in {} "
                    "any more; its config.json says how many (max_position_embeddings)",
                    text.context, run, folder.string()));
  } else if (*theirs > text.context) {
    text.context = *theirs;
    text.notices.push_back(
        fmt::format("the context is {} tokens, that of the base model in {}; {}", *theirs, folder.string(), run));
  }
}

}  // namespace

ExportedFile* find_exported(std::vector<ExportedFile>& files, std::string_view name) {
  const auto found =
      std::find_if(files.begin(), files.end(), [&](const ExportedFile& file) { return file.name == name; });
  return found == files.end() ? nullptr : &*found;
}

ExportedText exported_text(const TextModel& model, const LocatedModel& location) {
  ExportedText text;
  const Tokenizer& tokenizer = model.tokenizer;
  const TokenizerKind kind = model.config.data.tokenizer.type;
  text.context = model.config.model.context;
  const bool is_folder = location.source == ModelSource::hugging_face;
  if (is_folder) {
    text.files = folder_files(location.path);
    text.tokens = read_special_tokens(location.path);
  } else {
    text.files = own_files(tokenizer, kind);
    text.tokens = exported_tokens(model, location.path);
    take_base_context(text, model.config.model, location);
  }
  add_companions(text, location.path);
  if (kind == TokenizerKind::bytes) {
    add_byte_tokenizer(text, text.context);
  } else {
    add_names(text, model, kind);
  }
  if (!is_folder) add_chat(text, model, location.path);
  add_generation_config(text);
  if (kind == TokenizerKind::ids && !is_folder)
    text.folder_notice =
        "the folder has no tokenizer files: the model was trained on ready-made token ids. Put the files of the "
        "tokenizer that made them there";
  return text;
}

}  // namespace scaletrain
