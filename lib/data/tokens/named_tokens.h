// The special tokens that a tokenizer_config.json names, as ids.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "data/tokens/tokenizer.h"

namespace scaletrain {

class NamedTokens {
 public:
  // Reads the file; InputError where it is no JSON object. The tokenizer outlives this.
  NamedTokens(const Tokenizer& tokenizer, const std::filesystem::path& file);

  // `key`: such as "eos_token". By the file's added_tokens_decoder, else as the tokenizer reads that text. Nothing
  // where the file names none, or what is no one token; an id may be beyond the tokenizer's. InputError for a name that
  // is no text.
  std::optional<std::int64_t> id(const char* key) const;

 private:
  std::optional<std::int64_t> added_id(const std::string& text) const;

  const Tokenizer& tokenizer_;
  std::string where_;
  nlohmann::json config_;
};

}  // namespace scaletrain
