// From text to token ids and back.
//
// A tokenizer is immutable after it was made; all members may be called concurrently. Ids are 0 .. vocab_size() - 1.
// What belongs around each document, before_document() and end_of_document(), is put there when text is tokenised
// (lib/data does that, not encode()).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "config/config.h"
#include "data/tokens/bpe/added_tokens.h"
#include "data/tokens/bpe/byte_spelling.h"

namespace scaletrain {

// No token is known to end a document, and none was given. The message names the file and no remedy: whoever asked for
// the tokenizer knows where one is given.
class UnknownEndError : public InputError {
 public:
  using InputError::InputError;
};

class Tokenizer {
 public:
  Tokenizer() = default;
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // With the special tokens.
  virtual std::int64_t vocab_size() const = 0;
  virtual std::optional<std::int32_t> end_of_document() const = 0;
  // What a document and a prompt begin with: a tokenizer's beginning-of-sequence token, mostly nothing.
  virtual std::span<const std::int32_t> before_document() const { return {}; }
  // False if documents can only come from token files; then a text or JSONL source is refused.
  virtual bool reads_text() const = 0;

  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  // What follows a safe_cut() of a text: without what encode() takes a text's beginning for.
  virtual std::vector<std::int32_t> encode_rest(std::string_view text) const { return encode(text); }
  // Special tokens that encode() finds in a text; none where it takes all text for text.
  virtual std::vector<AddedToken> special_tokens() const { return {}; }
  // encode() of a text in which nothing is a special token, whatever it looks like: what people wrote, put between a
  // template's tokens. Other added tokens are found.
  virtual std::vector<std::int32_t> encode_plain(std::string_view text) const { return encode(text); }
  // The text that the tokens of encode_plain() spell.
  virtual std::string normalized(std::string_view text) const { return std::string(text); }
  // Special tokens decode to nothing. An id outside the vocabulary is an InputError.
  virtual std::string decode(std::span<const std::int32_t> tokens) const = 0;
  // For people: what a special token is called ("<|endoftext|>", "<s>"); empty for all other ids.
  virtual std::string special_name(std::int32_t /*token*/) const { return {}; }

  // The length of the longest prefix p of `text` that is known to satisfy
  //   encode(p + rest) = encode(p) + encode_rest(rest) and encode_rest(p + rest) = encode_rest(p) + encode_rest(rest),
  // whatever follows `text`; 0 if none is known. Lets a document of any size be tokenised in bounded memory. InputError
  // where there is none and the text is longer than what the tokenizer reads as a whole.
  virtual std::size_t safe_cut(std::string_view text) const = 0;

  // Says everything that decides the ids, for people and for hash(): "bytes, 257 tokens".
  virtual std::string description() const = 0;
  std::uint64_t hash() const;
  // Of what each of the first `count` ids stands for, a text or a special token's name: the same wherever those mean
  // the same tokens.
  std::uint64_t hash_of_ids(std::int64_t count) const;

  // The files that it was made from and that a checkpoint must carry.
  virtual std::vector<std::filesystem::path> files() const = 0;

 private:
  mutable std::mutex ids_mutex_;
  mutable std::map<std::int64_t, std::uint64_t> ids_hashes_;  // by count: a source may have many files
};

// One token for each of the 256 byte values, and token 256 at the end of a document.
class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr std::int32_t kEndOfDocument = 256;

  std::int64_t vocab_size() const override { return 257; }
  std::optional<std::int32_t> end_of_document() const override { return kEndOfDocument; }
  bool reads_text() const override { return true; }
  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const std::int32_t> tokens) const override;
  std::string special_name(std::int32_t token) const override {
    return token == kEndOfDocument ? kByteEndName : std::string();
  }
  std::size_t safe_cut(std::string_view text) const override { return text.size(); }
  std::string description() const override;
  std::vector<std::filesystem::path> files() const override { return {}; }
};

// For token files whose tokenizer is unknown: text is a list of ids separated by white space.
class IdsTokenizer final : public Tokenizer {
 public:
  IdsTokenizer(std::int64_t vocab, std::optional<std::int32_t> end_of_document);

  std::int64_t vocab_size() const override { return vocab_; }
  std::optional<std::int32_t> end_of_document() const override { return end_of_document_; }
  bool reads_text() const override { return false; }
  // What is no list of ids below the vocabulary's size is a UserError (the text is a prompt of the command line).
  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const std::int32_t> tokens) const override;
  std::size_t safe_cut(std::string_view text) const override;
  std::string description() const override;
  std::vector<std::filesystem::path> files() const override { return {}; }

 private:
  std::int64_t vocab_;
  std::optional<std::int32_t> end_of_document_;
};

// The texts of these tokens, one after the other; of each id its text. InputError for an id beyond them.
std::string joined_texts(std::span<const std::string> texts, std::span<const std::int32_t> tokens);

// The files that a tokenizer of this config is made from, without making it; none for bytes and ids. InputError for a
// folder without those of a BPE.
std::vector<std::filesystem::path> tokenizer_files(const TokenizerConfig& config);

// UserError, beginning with the key, for a file of the other kind of tokenizer, a folder with its files alone, and one
// without a SentencePiece model where that is the type.
void check_tokenizer_type(const TokenizerConfig& config);

// `model_vocab` is model.vocab, nothing for `auto`. UserError: ids without a number in model.vocab, an end_of_document
// outside the vocabulary, a model.vocab smaller than the tokenizer's, a type that is not supported. InputError: files
// that cannot be read or ask for what is not supported.
std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerConfig& config, std::optional<std::int64_t> model_vocab);

}  // namespace scaletrain
