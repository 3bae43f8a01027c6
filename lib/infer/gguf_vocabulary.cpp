#include "infer/gguf_vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "data/tokens/bpe/bpe_spec.h"
#include "data/tokens/bpe/bpe_training.h"
#include "data/tokens/bpe/byte_spelling.h"
#include "data/tokens/companion_files.h"
#include "data/tokens/sentencepiece/model_file.h"

namespace scaletrain {

namespace fs = std::filesystem;

namespace {

using nlohmann::json;
using Kind = GgufVocabulary::Kind;

constexpr JsonLimits file_limits{.depth = 64, .bytes = 1ull << 30};
constexpr const char* remedy = "; --to huggingface has it";

// Llama 3's with one digit at a time.
constexpr std::string_view qwen2_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The steps of a tokenizer.json's pre_tokenizer.
std::vector<json> steps_of(const json& root) {
  const auto found = root.find("pre_tokenizer");
  if (found == root.end() || found->is_null()) return {};
  if (found->value("type", "") == "Sequence") return found->at("pretokenizers").get<std::vector<json>>();
  return {*found};
}

// llama.cpp knows patterns by names of its own. The file was read as a tokenizer before: it has the members that it
// needs.
std::string name_of_pattern(const json& root, bool ignores_merges, const std::string& where) {
  const std::vector<json> steps = steps_of(root);
  const auto is_byte_level = [](const json& step, bool uses_pattern) {
    return step.value("type", "") == "ByteLevel" && step.value("use_regex", true) == uses_pattern &&
           !step.value("add_prefix_space", true);
  };
  if (steps.size() == 1 && is_byte_level(steps[0], true)) return "gpt-2";
  if (steps.size() == 2 && steps[0].value("type", "") == "Split" && is_byte_level(steps[1], false)) {
    const json& pattern = steps[0].at("pattern");
    const std::string regex = pattern.value("Regex", "");
    const bool is_isolated = steps[0].value("behavior", "") == "Isolated" && !steps[0].value("invert", false);
    // The name of Llama 3's own says that a word that is a token is that token, whatever the merges make.
    if (is_isolated && regex == text_of(BpePattern::llama3)) return ignores_merges ? "llama-bpe" : "smaug-bpe";
    if (is_isolated && regex == qwen2_pattern && !ignores_merges) return "qwen2";
  }
  throw UserError(fmt::format(
      "--to gguf: {}: pre_tokenizer: llama.cpp knows patterns by names, and this program those of GPT-2's, Llama 3's "
      "and Qwen2's: this tokenizer has another{}",
      where, remedy));
}

GgufVocabulary vocabulary_of(const BpeSpec& spec) {
  GgufVocabulary vocabulary;
  vocabulary.model = "gpt2";
  std::size_t size = spec.model.tokens.size();
  for (const AddedToken& token : spec.added) size = std::max(size, static_cast<std::size_t>(token.id) + 1);
  for (std::size_t id = 0; id < size; ++id) {
    const bool is_there = id < spec.model.tokens.size() && spec.model.tokens[id].has_value();
    vocabulary.tokens.push_back(is_there ? spelled_bytes(*spec.model.tokens[id]) : fmt::format("[PAD{}]", id));
    vocabulary.kinds.push_back(is_there ? Kind::normal : Kind::unused);
  }
  for (const AddedToken& token : spec.added) {
    vocabulary.tokens[static_cast<std::size_t>(token.id)] = token.content;
    vocabulary.kinds[static_cast<std::size_t>(token.id)] = token.is_special ? Kind::control : Kind::user_defined;
  }
  const auto text = [&](std::int32_t id) { return spelled_bytes(*spec.model.tokens[static_cast<std::size_t>(id)]); };
  for (const BpeMerge& merge : spec.model.merges)
    vocabulary.merges.push_back(text(merge.left) + " " + text(merge.right));
  return vocabulary;
}

GgufVocabulary bpe_vocabulary(const std::vector<fs::path>& files, std::string& notice) {
  const BpeSpec spec = read_bpe_spec(files.front());
  GgufVocabulary vocabulary = vocabulary_of(spec);
  vocabulary.pre = "gpt-2";
  if (files.size() == 1 && !spec.model.merges.empty())
    vocabulary.pre =
        name_of_pattern(read_json_file(files.front(), file_limits), spec.model.ignores_merges, files.front().string());
  if (spec.is_nfc) notice = "llama.cpp does not normalise text (NFC), as this tokenizer does";
  return vocabulary;
}

GgufVocabulary byte_vocabulary() {
  GgufVocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = "gpt-2";
  for (int byte = 0; byte < 256; ++byte)
    vocabulary.tokens.push_back(spelled_bytes(std::string(1, static_cast<char>(byte))));
  vocabulary.tokens.emplace_back(kByteEndName);
  vocabulary.kinds.assign(256, Kind::normal);
  vocabulary.kinds.push_back(Kind::control);
  return vocabulary;
}

GgufVocabulary sentencepiece_vocabulary(const fs::path& file) {
  const SentencePieceModel model = parse_sentencepiece_model(read_text_file(file, file_limits.bytes), file.string());
  if (model.kind != SentencePieceModel::Kind::bpe || model.has_rules || model.removes_spaces)
    throw UserError(fmt::format(
        "--to gguf: {}: only SentencePiece's BPE without rules of normalisation and with all spaces kept is "
        "supported there{}",
        file.string(), remedy));
  GgufVocabulary vocabulary;
  vocabulary.model = "llama";
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    vocabulary.tokens.push_back(piece.text);
    vocabulary.kinds.push_back(static_cast<Kind>(piece.kind));  // the same numbers
    vocabulary.scores.push_back(piece.score);
  }
  vocabulary.adds_space_prefix = model.has_dummy_prefix;
  return vocabulary;
}

std::string chat_template_of(const ExportedText& text) {
  const auto find = [&](std::string_view name) {
    return std::find_if(text.files.begin(), text.files.end(),
                        [&](const ExportedFile& file) { return file.name == name; });
  };
  if (const auto jinja = find(kChatTemplateFile); jinja != text.files.end()) return jinja->content;
  const auto config = find(kTokenizerConfigFile);
  if (config == text.files.end()) return {};
  const json parsed = parse_json(config->content, kTokenizerConfigFile);
  const auto found = parsed.find("chat_template");
  return found != parsed.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

VocabularyOfGguf gguf_vocabulary(const LoadedModel& model, const ExportedText& text) {
  VocabularyOfGguf out;
  const std::vector<fs::path> files = model.tokenizer().files();
  switch (model.config().data.tokenizer.type) {
    case TokenizerKind::bytes:
      out.vocabulary = byte_vocabulary();
      break;
    case TokenizerKind::bpe:
      out.vocabulary = bpe_vocabulary(files, out.notice);
      break;
    case TokenizerKind::sentencepiece:
      out.vocabulary = sentencepiece_vocabulary(files.front());
      break;
    case TokenizerKind::ids:
      out.notice = "the file has no tokenizer: the model reads token ids";
      return out;
  }
  out.vocabulary.special = text.tokens;
  out.vocabulary.begins_document = !model.tokenizer().before_document().empty();
  out.vocabulary.chat_template = chat_template_of(text);
  return out;
}

}  // namespace scaletrain
