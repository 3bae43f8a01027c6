// SentencePiece models (tokenizer.model), by Google's library: the ids are its own for every text.
//
// A document begins with the model's bos where it has one, as Llama's do, and ends with its eos.
//
// Most models put a space before a text that has none, so that a first word is the same token as one amid a text. What
// follows a cut has none (encode_rest()). A text may be cut between two characters that no piece of the vocabulary has
// beside each other, with models whose result elsewhere cannot depend on it: byte-pair encoding and characters without
// rules of normalisation and with all spaces kept (Llama 2, Mistral, Gemma). Other models read a document as a whole:
// unigram models add up scores in single precision over all of a text, and rules may look at any number of characters.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "data/tokens/sentencepiece/model_file.h"
#include "data/tokens/tokenizer.h"

namespace scaletrain {

// The file that a model of this path is: itself, or the folder's tokenizer.model.
std::filesystem::path sentencepiece_file(const std::filesystem::path& path);
bool holds_sentencepiece_file(const std::filesystem::path& folder);

class SentencePieceTokenizer final : public Tokenizer {
 public:
  // The longest text that is read as a whole where there is no place to cut it.
  static constexpr std::size_t kLongestWhole = 64u << 20;

  // path: the model, or a folder with a tokenizer.model. `end_of_document`: the token that ends a document; nothing:
  // the model's eos. InputError for what is no model or asks for what is not supported, UserError for a given token
  // that is not in the vocabulary, UnknownEndError (tokenizer.h) if none is known.
  SentencePieceTokenizer(const std::filesystem::path& path, std::optional<std::int64_t> end_of_document);
  ~SentencePieceTokenizer() override;

  std::int64_t vocab_size() const override { return static_cast<std::int64_t>(texts_.size()); }
  std::optional<std::int32_t> end_of_document() const override { return end_of_document_; }
  std::span<const std::int32_t> before_document() const override { return before_document_; }
  bool reads_text() const override { return true; }
  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::vector<std::int32_t> encode_rest(std::string_view text) const override;
  // A word's token has its space. The one that was put before a text is left out where the tokens begin with bos, as
  // those of a document do. Bytes of a character that the vocabulary does not have are bytes here.
  std::string decode(std::span<const std::int32_t> tokens) const override;
  std::string special_name(std::int32_t token) const override;
  // InputError for a text beyond kLongestWhole that cannot be cut.
  std::size_t safe_cut(std::string_view text) const override;
  std::string description() const override;
  std::vector<std::filesystem::path> files() const override { return {file_}; }

 private:
  struct Library;
  static constexpr std::size_t kPart = 1u << 12;

  void set_texts(const SentencePieceModel& model);
  void set_neighbours(const SentencePieceModel& model);
  void choose_tokens(std::optional<std::int64_t> end_of_document);
  bool is_safe(char32_t x, char32_t y) const;
  [[noreturn]] void refuse_length(std::size_t size) const;
  std::size_t part_of(std::string_view text) const;
  std::vector<std::int32_t> encode_parts(std::string_view text, bool is_begin) const;

  std::filesystem::path file_;
  std::uint64_t content_hash_ = 0;
  std::unique_ptr<Library> library_;
  std::vector<std::string> texts_;  // of each id; empty: special
  std::vector<std::int32_t> before_document_;
  std::int32_t end_of_document_ = 0;
  bool has_dummy_prefix_ = false;
  bool can_be_cut_ = false;
  bool needs_known_ = false;                      // runs of unknown characters are one token
  std::unordered_set<char32_t> known_;            // characters that are pieces themselves
  std::unordered_set<std::uint64_t> neighbours_;  // pairs of characters that a piece has beside each other
};

}  // namespace scaletrain
