// Byte-level byte-pair encoding, as Hugging Face's `tokenizers` and GPT-2 do it: the ids are theirs for every text.
//
//   text ─added tokens─> parts ─NFC─> ─added tokens of normalised text─> ─split steps─> pieces ─merges─> ids
//
// Text that is no UTF-8 is read as `tokenizers` would see it: each malformed sequence as U+FFFD (unicode.h), so that it
// does not come back by decode(). All other text does, byte for byte, unless the tokenizer normalises it, removes
// matches or puts a space before it. Special tokens written in a text become those tokens, and decode to nothing.
//
// encode() may be called by any number of threads; each borrows a workspace, of which there are as many as ever ran at
// once.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "data/tokens/bpe/bpe_spec.h"
#include "data/tokens/tokenizer.h"

namespace scaletrain {

class BpeTokenizer final : public Tokenizer {
 public:
  // `end_of_document`: the token that ends a document; nothing: the one that the template puts behind a text, else the
  // first of <|endoftext|>, <|end_of_text|>, <|end▁of▁sentence|> (DeepSeek's spelling), </s>, <eos> that is an added
  // token. UserError if the given one is not in the vocabulary, UnknownEndError if there is none.
  BpeTokenizer(BpeSpec spec, std::optional<std::int64_t> end_of_document);
  ~BpeTokenizer() override;

  std::int64_t vocab_size() const override { return static_cast<std::int64_t>(texts_.size()); }
  std::optional<std::int32_t> end_of_document() const override { return end_of_document_; }
  std::span<const std::int32_t> before_document() const override { return spec_.before_text; }
  bool reads_text() const override { return true; }
  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::vector<AddedToken> special_tokens() const override;
  std::vector<std::int32_t> encode_plain(std::string_view text) const override;
  std::string normalized(std::string_view text) const override;
  std::string decode(std::span<const std::int32_t> tokens) const override;
  std::string special_name(std::int32_t token) const override;
  std::size_t safe_cut(std::string_view text) const override;
  std::string description() const override;
  std::vector<std::filesystem::path> files() const override { return spec_.files; }

 private:
  struct Run;
  // Of the text as it is, and of the normalised text.
  struct Finders {
    AddedTokenFinder exact;
    AddedTokenFinder normalized;
  };

  void set_texts();
  void choose_end(std::optional<std::int64_t> given);
  std::unique_ptr<Run> borrow() const;
  void give_back(std::unique_ptr<Run> run) const;
  std::vector<std::int32_t> encode_with(const Finders& finders, std::string_view text) const;
  void encode_parts(std::string_view text, Run& run) const;
  void encode_normalized(std::string_view text, Run& run) const;
  void split(std::size_t step, std::string_view text, Run& run) const;
  void split_by_ranges(std::size_t step, std::string_view text, Run& run) const;
  void deliver(std::size_t step, std::string_view piece, Run& run) const;
  bool is_safe(char32_t x, char32_t y) const;

  BpeSpec spec_;  // without its model's tokens and merges
  BpeMerges merges_;
  Finders added_;
  Finders added_plain_;             // those that are not special
  std::size_t prefix_step_;         // the step before which ByteLevel puts its space
  std::vector<std::string> texts_;  // of each id; empty: special, or none
  std::int32_t end_of_document_ = 0;
  std::string end_text_;

  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Run>> idle_;
};

}  // namespace scaletrain
