#include "data/tokens/sentencepiece/sentencepiece_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace scaletrain {

namespace {

using nlohmann::ordered_json;
using PieceKind = SentencePieceModel::PieceKind;

constexpr const char* space = "\xe2\x96\x81";  // U+2581

struct ScoredMerge {
  std::string_view left, right;
  float score = 0.0F;
};

// Of characters, not bytes: by these lengths transformers orders merges of one score.
std::ptrdiff_t length(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

std::vector<ScoredMerge> merges_of(const SentencePieceModel& model) {
  std::unordered_map<std::string_view, bool> pieces;  // whether text is made of it
  for (const SentencePieceModel::Piece& piece : model.pieces) pieces[piece.text] = piece.kind == PieceKind::normal;
  std::vector<ScoredMerge> merges;
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    if (piece.kind != PieceKind::normal) continue;
    const std::string_view text = piece.text;
    for (std::size_t cut = 1; cut < text.size(); ++cut) {
      const auto left = pieces.find(text.substr(0, cut));
      const auto right = pieces.find(text.substr(cut));
      if (left != pieces.end() && right != pieces.end() && left->second && right->second)
        merges.push_back({text.substr(0, cut), text.substr(cut), piece.score});
    }
  }
  std::stable_sort(merges.begin(), merges.end(), [](const ScoredMerge& a, const ScoredMerge& b) {
    return std::tuple(a.score, length(a.left), length(a.right)) > std::tuple(b.score, length(b.left), length(b.right));
  });
  return merges;
}

ordered_json added_tokens(const SentencePieceModel& model) {
  ordered_json added = ordered_json::array();
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePieceModel::Piece& piece = model.pieces[id];
    const bool is_special = piece.kind == PieceKind::control || piece.kind == PieceKind::unknown;
    if (!is_special && piece.kind != PieceKind::user_defined) continue;
    added.push_back({{"id", id},
                     {"content", piece.text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", is_special}});
  }
  return added;
}

ordered_json normalizer(const SentencePieceModel& model) {
  ordered_json steps = ordered_json::array();
  if (model.has_dummy_prefix) steps.push_back({{"type", "Prepend"}, {"prepend", space}});
  steps.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", space}});
  return {{"type", "Sequence"}, {"normalizers", steps}};
}

ordered_json decoder(const SentencePieceModel& model) {
  ordered_json steps = ordered_json::array();
  steps.push_back({{"type", "Replace"}, {"pattern", {{"String", space}}}, {"content", " "}});
  steps.push_back({{"type", "ByteFallback"}});
  steps.push_back({{"type", "Fuse"}});
  if (model.has_dummy_prefix) steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return {{"type", "Sequence"}, {"decoders", steps}};
}

ordered_json post_processor(const SentencePieceModel& model, std::optional<std::int64_t> begin) {
  if (!begin) return nullptr;
  const std::string& text = model.pieces[static_cast<std::size_t>(*begin)].text;
  const ordered_json token = {{"SpecialToken", {{"id", text}, {"type_id", 0}}}};
  const auto sequence = [](const char* id, int type) {
    return ordered_json{{"Sequence", {{"id", id}, {"type_id", type}}}};
  };
  const ordered_json second = {{"SpecialToken", {{"id", text}, {"type_id", 1}}}};
  return {{"type", "TemplateProcessing"},
          {"single", ordered_json::array({token, sequence("A", 0)})},
          {"pair", ordered_json::array({token, sequence("A", 0), second, sequence("B", 1)})},
          {"special_tokens",
           {{text, {{"id", text}, {"ids", ordered_json::array({*begin})}, {"tokens", ordered_json::array({text})}}}}}};
}

}  // namespace

std::optional<std::string> sentencepiece_json(const SentencePieceModel& model, std::optional<std::int64_t> begin) {
  const bool is_plain = model.kind == SentencePieceModel::Kind::bpe && !model.has_rules && !model.removes_spaces &&
                        model.escapes_spaces && !model.has_space_behind;
  if (!is_plain) return std::nullopt;
  ordered_json unknown = nullptr;
  std::string vocab;  // by hand: ordered_json looks through all members for each that is added
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePieceModel::Piece& piece = model.pieces[id];
    if (piece.kind == PieceKind::unknown) unknown = piece.text;
    vocab += fmt::format("{}{}:{}", id > 0 ? "," : "", ordered_json(piece.text).dump(), id);
  }
  std::string merges;
  for (const ScoredMerge& merge : merges_of(model))
    merges += fmt::format("{}[{},{}]", merges.empty() ? "" : ",", ordered_json(std::string(merge.left)).dump(),
                          ordered_json(std::string(merge.right)).dump());
  return fmt::format(
      "{{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":{},\"normalizer\":{},"
      "\"pre_tokenizer\":null,\"post_processor\":{},\"decoder\":{},\"model\":{{\"type\":\"BPE\",\"dropout\":null,"
      "\"unk_token\":{},\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":true,"
      "\"byte_fallback\":{},\"ignore_merges\":false,\"vocab\":{{{}}},\"merges\":[{}]}}}}\n",
      added_tokens(model).dump(), normalizer(model).dump(), post_processor(model, begin).dump(), decoder(model).dump(),
      unknown.dump(), model.has_byte_fallback, vocab, merges);
}

}  // namespace scaletrain
