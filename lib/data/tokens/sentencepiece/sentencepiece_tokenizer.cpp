#include "data/tokens/sentencepiece/sentencepiece_tokenizer.h"

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <charconv>

#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"
#include "data/tokens/bpe/unicode.h"

namespace scaletrain {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t largest_model = 256ull << 20;
constexpr std::string_view escaped_space = "\xe2\x96\x81";  // U+2581
constexpr char32_t escaped_space_point = 0x2581;

// Raised when the same model and text would give other ids.
constexpr int kSentencePieceRules = 1;

void check(const sentencepiece::util::Status& status, const std::string& where) {
  if (!status.ok()) throw InputError(fmt::format("{}: {}", where, status.ToString()));
}

std::string with_spaces(std::string_view piece) {
  std::string out;
  while (!piece.empty()) {
    const std::size_t at = std::min(piece.find(escaped_space), piece.size());
    out += piece.substr(0, at);
    piece.remove_prefix(at);
    if (piece.empty()) break;
    out += ' ';
    piece.remove_prefix(escaped_space.size());
  }
  return out;
}

// "<0x0A>".
std::string byte_of(std::string_view piece, const std::string& where) {
  unsigned value = 0;
  if (piece.size() == 6 && piece.starts_with("<0x") && piece.ends_with('>')) {
    const auto [stop, error] = std::from_chars(piece.data() + 3, piece.data() + 5, value, 16);
    if (error == std::errc() && stop == piece.data() + 5) return std::string(1, static_cast<char>(value));
  }
  throw InputError(fmt::format("{}: the piece {} is to be a byte, but names none", where, quoted(piece)));
}

char32_t as_in_model(char32_t c) {
  return c == ' ' ? escaped_space_point : c;
}

bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0) == 0x80;
}

std::uint64_t pair_of(char32_t x, char32_t y) {
  return std::uint64_t{x} << 32 | y;
}

}  // namespace

fs::path sentencepiece_file(const fs::path& path) {
  return is_folder(path) ? path / "tokenizer.model" : path;
}

bool holds_sentencepiece_file(const fs::path& folder) {
  return path_exists(folder / "tokenizer.model");
}

struct SentencePieceTokenizer::Library {
  sentencepiece::SentencePieceProcessor whole;  // of texts from their beginning
  sentencepiece::SentencePieceProcessor rest;   // of what follows a cut
};

SentencePieceTokenizer::SentencePieceTokenizer(const fs::path& path, std::optional<std::int64_t> end_of_document)
    : file_(sentencepiece_file(path)), library_(std::make_unique<Library>()) {
  const std::string bytes = read_text_file(file_, largest_model);
  const SentencePieceModel model = parse_sentencepiece_model(bytes, file_.string());
  if (model.has_decoding_rules)
    throw InputError(fmt::format("{}: a denormalizer with rules is not supported", file_.string()));
  content_hash_ = hash_text(bytes);
  check(library_->whole.LoadFromSerializedProto(bytes), file_.string());
  check(library_->rest.LoadFromSerializedProto(without_dummy_prefix(bytes)), file_.string());
  SCALETRAIN_CHECK(library_->whole.GetPieceSize() == static_cast<int>(model.pieces.size()));
  has_dummy_prefix_ = model.has_dummy_prefix;
  can_be_cut_ = (model.kind == SentencePieceModel::Kind::bpe || model.kind == SentencePieceModel::Kind::character) &&
                !model.has_rules && !model.removes_spaces && model.escapes_spaces &&
                !(model.has_space_behind && model.has_dummy_prefix);
  needs_known_ = !model.has_byte_fallback;
  set_texts(model);
  if (can_be_cut_) set_neighbours(model);
  choose_tokens(end_of_document);
}

SentencePieceTokenizer::~SentencePieceTokenizer() = default;

void SentencePieceTokenizer::set_texts(const SentencePieceModel& model) {
  using Kind = SentencePieceModel::PieceKind;
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    switch (piece.kind) {
      case Kind::control:
        texts_.emplace_back();
        break;
      case Kind::unknown:
        texts_.push_back(model.unknown_text);
        break;
      case Kind::byte:
        texts_.push_back(byte_of(piece.text, file_.string()));
        break;
      default:
        texts_.push_back(with_spaces(piece.text));
    }
  }
}

void SentencePieceTokenizer::set_neighbours(const SentencePieceModel& model) {
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    std::optional<char32_t> before;
    std::size_t count = 0;
    for (std::size_t at = 0; at < piece.text.size(); ++count) {
      const Decoded c = decode_utf8(piece.text.data() + at);
      if (before) neighbours_.insert(pair_of(*before, c.code_point));
      before = c.code_point;
      at += static_cast<std::size_t>(c.length);
    }
    if (count == 1) known_.insert(*before);
  }
}

void SentencePieceTokenizer::choose_tokens(std::optional<std::int64_t> end_of_document) {
  const int begin = library_->whole.bos_id();
  if (begin >= 0) before_document_ = {begin};
  const std::int64_t end = end_of_document.value_or(library_->whole.eos_id());
  if (!end_of_document && end < 0)
    throw UnknownEndError(
        fmt::format("{}: it is not known which token ends a document: the model has no eos", file_.string()));
  if (end < 0 || end >= vocab_size())
    throw UserError(fmt::format("data.tokenizer.end_of_document: {} is not a token; {} has the tokens 0 to {}", end,
                                file_.string(), vocab_size() - 1));
  end_of_document_ = static_cast<std::int32_t>(end);
}

void SentencePieceTokenizer::refuse_length(std::size_t size) const {
  throw InputError(
      fmt::format("a document of {} bytes or more cannot be tokenised by {}, whose model reads a document as a whole, "
                  "at most {}: split it (data.train[].separator, or a JSON line for each part)",
                  size, file_.string(), bytes_text(kLongestWhole)));
}

// The library's time and memory grow faster than the text: it is given a part at a time, where it can be.
std::size_t SentencePieceTokenizer::part_of(std::string_view text) const {
  for (std::size_t size = kPart; size < text.size(); size *= 2)
    if (const std::size_t cut = can_be_cut_ ? safe_cut(text.substr(0, size)) : 0; cut > 0) return cut;
  if (text.size() > kLongestWhole) refuse_length(text.size());
  return text.size();
}

std::vector<std::int32_t> SentencePieceTokenizer::encode_parts(std::string_view text, bool is_begin) const {
  std::vector<std::int32_t> out;
  std::vector<int> ids;
  for (; !text.empty(); is_begin = false) {
    const std::string_view part = text.substr(0, part_of(text));
    check((is_begin ? library_->whole : library_->rest).Encode(part, &ids), file_.string());
    out.insert(out.end(), ids.begin(), ids.end());
    text.remove_prefix(part.size());
  }
  return out;
}

std::vector<std::int32_t> SentencePieceTokenizer::encode(std::string_view text) const {
  return encode_parts(text, true);
}

std::vector<std::int32_t> SentencePieceTokenizer::encode_rest(std::string_view text) const {
  return encode_parts(text, false);
}

std::string SentencePieceTokenizer::decode(std::span<const std::int32_t> tokens) const {
  std::string text = joined_texts(texts_, tokens);
  const bool is_begin = !tokens.empty() && !before_document_.empty() && tokens.front() == before_document_.front();
  if (has_dummy_prefix_ && is_begin && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

std::string SentencePieceTokenizer::special_name(std::int32_t token) const {
  const bool is_special = token >= 0 && token < vocab_size() && texts_[static_cast<std::size_t>(token)].empty();
  return is_special ? library_->whole.IdToPiece(token) : std::string();
}

bool SentencePieceTokenizer::is_safe(char32_t x, char32_t y) const {
  if (needs_known_ && !known_.contains(x) && !known_.contains(y)) return false;
  return !neighbours_.contains(pair_of(x, y));
}

std::size_t SentencePieceTokenizer::safe_cut(std::string_view text) const {
  if (can_be_cut_) {
    // Between two characters that are both there and well-formed. Nothing but a well-formed one begins where one does.
    std::optional<char32_t> right;
    for (std::size_t at = text.size(); at > 0;) {
      constexpr std::size_t longest_character = 4;
      std::size_t first = at - 1;
      while (first > 0 && at - first < longest_character && is_continuation(text[first])) --first;
      int malformed = 0;
      const bool is_whole = first + static_cast<std::size_t>(utf8_length_at(text, first, malformed)) == at;
      const auto left =
          is_whole ? std::optional(as_in_model(decode_utf8(text.data() + first).code_point)) : std::nullopt;
      if (left && right && is_safe(*left, *right)) return at;
      right = left;
      at = is_whole ? first : at - 1;
    }
  }
  if (text.size() > kLongestWhole) refuse_length(text.size());
  return 0;
}

std::string SentencePieceTokenizer::description() const {
  // Versions of the library choose differently between what is equally likely in a unigram model.
  return fmt::format("sentencepiece {}, {} tokens, end of document {}, rules {}, library {}", to_hex(content_hash_),
                     vocab_size(), end_of_document_, kSentencePieceRules, SCALETRAIN_SENTENCEPIECE_VERSION);
}

}  // namespace scaletrain
