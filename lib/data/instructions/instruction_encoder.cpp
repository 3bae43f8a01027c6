#include "data/instructions/instruction_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "data/tokens/text_notes.h"

namespace scaletrain {

namespace {

// Changes when the same record would become other tokens, be masked or packed otherwise.
constexpr std::uint64_t kInstructionRules = 1;

struct ByteRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};

}  // namespace

std::uint64_t InstructionRules::hash() const {
  // A template's name and its bos decide all of its text.
  const std::array<ChatMessage, 1> nothing = {ChatMessage{"user", ""}};
  const std::uint64_t template_hash =
      chat ? hash_text(chat_text(chat->render(nothing, false)), hash_text(chat->name())) : 0;
  std::vector<std::uint64_t> numbers = {kInstructionRules, static_cast<std::uint64_t>(records),
                                        static_cast<std::uint64_t>(loss), template_hash,
                                        static_cast<std::uint64_t>(context)};
  // What was packed before there was one still is what it was.
  if (end) numbers.push_back(static_cast<std::uint64_t>(*end));
  return hash_bytes(std::as_bytes(std::span(numbers)));
}

// Tokens of a text that comes in parts. What lies between two special tokens is tokenised as a whole, since a token may
// reach from a template's text into a message.
class InstructionEncoder::Assembly {
 public:
  Assembly(const Tokenizer& tokenizer, const AddedTokenFinder& special) : tokenizer_(tokenizer), special_(special) {}

  // Text in which special tokens are themselves.
  void add(std::string_view text, bool is_learned) {
    parts_.clear();
    special_.split(text, parts_);
    for (const AddedTokenFinder::Part& part : parts_) {
      if (part.token) {
        finish_section();
        add_token(*part.token, is_learned);
      } else {
        add_text(part.text, is_learned);
      }
    }
  }
  void add_text(std::string_view text, bool is_learned) {
    if (is_learned && !text.empty()) {
      if (!learned_.empty() && learned_.back().end == section_.size()) {
        learned_.back().end += text.size();
      } else {
        learned_.push_back({section_.size(), section_.size() + text.size()});
      }
    }
    section_ += text;
  }
  void add_token(std::int32_t token, bool is_learned) {
    finish_section();
    out_.tokens.push_back(token);
    out_.learned.push_back(is_learned ? 1 : 0);
  }
  bool ends_with(std::int32_t token) {
    finish_section();
    return !out_.tokens.empty() && out_.tokens.back() == token;
  }
  PackedDocument take() {
    finish_section();
    return std::move(out_);
  }

 private:
  void finish_section() {
    if (section_.empty()) return;
    const std::vector<std::int32_t> tokens = tokenizer_.encode_plain(section_);
    const bool is_all = learned_.size() == 1 && learned_[0].begin == 0 && learned_[0].end == section_.size();
    out_.tokens.insert(out_.tokens.end(), tokens.begin(), tokens.end());
    out_.learned.resize(out_.tokens.size(), is_all ? 1 : 0);
    if (!is_all && !learned_.empty()) mark(tokens, std::span(out_.learned).last(tokens.size()));
    section_.clear();
    learned_.clear();
  }

  // The tokens that share a byte with a learned range.
  void mark(std::span<const std::int32_t> tokens, std::span<std::uint8_t> marks) const {
    std::string text;
    std::vector<std::size_t> ends;
    for (const std::int32_t token : tokens) {
      text += tokenizer_.decode({&token, 1});
      ends.push_back(text.size());
    }
    // Some tokenizers put a space before a text.
    const std::string whole = tokenizer_.normalized(section_);
    const std::size_t shift = text.size() == whole.size() + 1 && text.front() == ' ' ? 1 : 0;
    if (std::string_view(text).substr(shift) != whole)
      throw InputError(
          fmt::format("data.tokenizer: the tokens of {} spell another text, {}, so it cannot be told which of them are "
                      "the answer's; data.instructions.loss: all needs not know",
                      quoted(section_, 60), quoted(text, 60)));
    for (const ByteRange& range : learned_) {
      const std::size_t begin = shift + tokenizer_.normalized(std::string_view(section_).substr(0, range.begin)).size();
      const std::size_t end = shift + tokenizer_.normalized(std::string_view(section_).substr(0, range.end)).size();
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const std::size_t token_begin = i == 0 ? 0 : ends[i - 1];
        if (token_begin < end && ends[i] > begin) marks[i] = 1;
      }
    }
  }

  const Tokenizer& tokenizer_;
  const AddedTokenFinder& special_;
  std::vector<AddedTokenFinder::Part> parts_;
  std::string section_;
  std::vector<ByteRange> learned_;  // of the section
  PackedDocument out_;
};

InstructionEncoder::InstructionEncoder(InstructionRules rules, const Tokenizer& tokenizer)
    : rules_(std::move(rules)), tokenizer_(tokenizer), special_(tokenizer.special_tokens()) {
  SCALETRAIN_CHECK(rules_.context > 0 && rules_.records != RecordKind::text);
  if (rules_.records != RecordKind::messages) return;
  SCALETRAIN_CHECK(rules_.chat.has_value());
  const std::string_view end = rules_.chat->end_of_turn();
  if (tokenizer.encode(end).size() != 1)
    throw InputError(fmt::format(
        "{}: {}, which ends a turn by the template {}, is no token of the tokenizer ({}); take the tokenizer of a chat "
        "model, or records: prompt_completion, which need no template",
        rules_.template_key, quoted(end), rules_.chat->name(), tokenizer.description()));
  for (const AddedToken& token : tokenizer.special_tokens())
    if (token.strips_left || token.strips_right)
      throw InputError(
          fmt::format("data.tokenizer: its special token {} takes the white space beside it, which is not done in "
                      "messages; records: prompt_completion need no template",
                      quoted(token.content)));
}

EncodedInstruction InstructionEncoder::encode(const InstructionRecord& record, const std::string& where) const {
  EncodedInstruction encoded =
      rules_.records == RecordKind::messages ? encode_messages(record, where) : encode_completion(record);
  std::vector<std::uint8_t>& learned = encoded.document.learned;
  if (rules_.loss == InstructionLoss::all) std::fill(learned.begin(), learned.end(), std::uint8_t{1});
  // Nothing comes before it, to predict it from.
  if (!learned.empty()) learned.front() = 0;
  if (std::find(learned.begin(), learned.end(), 1) == learned.end())
    throw BadRecordError("without an answer", fmt::format("{}: there is no answer in it to learn", where));
  return encoded;
}

EncodedInstruction InstructionEncoder::encode_messages(const InstructionRecord& record,
                                                       const std::string& where) const {
  std::vector<ChatPiece> pieces;
  try {
    pieces = rules_.chat->render(record.messages, false);
  } catch (const UserError& error) {
    throw BadRecordError("with a role that is not known", fmt::format("{}: {}", where, error.what()));
  }
  EncodedInstruction encoded;
  Assembly assembly(tokenizer_, special_);
  std::vector<AddedTokenFinder::Part> parts;
  for (const ChatPiece& piece : pieces) {
    const bool is_learned =
        piece.kind == ChatPiece::Kind::answer && static_cast<std::size_t>(piece.message) >= record.first_answer;
    if (!piece.is_quoted) {
      assembly.add(piece.text, is_learned);
      continue;
    }
    assembly.add_text(piece.text, is_learned);
    parts.clear();
    special_.split(piece.text, parts);
    encoded.quotes_special =
        encoded.quotes_special || std::any_of(parts.begin(), parts.end(), [](const auto& part) { return part.token; });
  }
  encoded.document = assembly.take();
  return encoded;
}

EncodedInstruction InstructionEncoder::encode_completion(const InstructionRecord& record) const {
  Assembly assembly(tokenizer_, special_);
  for (const std::int32_t token : tokenizer_.before_document()) assembly.add_token(token, false);
  // Special tokens are looked for in the whole text: one may take the white space beside it.
  const std::string text = record.prompt + record.completion;
  std::vector<AddedTokenFinder::Part> parts;
  special_.split(text, parts);
  std::size_t at = 0;
  for (const AddedTokenFinder::Part& part : parts) {
    const std::size_t end = at + part.text.size();
    const std::size_t border = std::clamp(record.prompt.size(), at, end);
    if (part.token) {
      assembly.add_token(*part.token, end > record.prompt.size());
    } else {
      assembly.add_text(part.text.substr(0, border - at), false);
      assembly.add_text(part.text.substr(border - at), true);
    }
    at = end;
  }
  const auto end = rules_.end ? rules_.end : tokenizer_.end_of_document();
  if (end && !assembly.ends_with(*end)) assembly.add_token(*end, true);
  return {.document = assembly.take(), .quotes_special = false};
}

}  // namespace scaletrain
