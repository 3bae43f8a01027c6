// A tokenizer as data.tokenizer names it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "data/tokens/tokenizer.h"
#include "shared_data.h"

namespace scaletrain {

inline std::unique_ptr<Tokenizer> open_tokenizer(TokenizerKind type, const std::filesystem::path& path,
                                                 std::optional<std::int64_t> end_of_document = std::nullopt) {
  TokenizerConfig config;
  config.type = type;
  config.path = path.string();
  config.end_of_document = end_of_document;
  return make_tokenizer(config, std::nullopt);
}

inline std::unique_ptr<Tokenizer> open_bpe(const std::filesystem::path& path,
                                           std::optional<std::int64_t> end_of_document = std::nullopt) {
  return open_tokenizer(TokenizerKind::bpe, path, end_of_document);
}

inline std::unique_ptr<Tokenizer> open_sentencepiece(const std::filesystem::path& path,
                                                     std::optional<std::int64_t> end_of_document = std::nullopt) {
  return open_tokenizer(TokenizerKind::sentencepiece, path, end_of_document);
}

// One of shared data's, of that folder. Opened once in a program: that reads megabytes of JSON, which takes longer than
// what tests do with it.
inline const Tokenizer& real_tokenizer(const std::string& name) {
  static std::map<std::string, std::unique_ptr<Tokenizer>> opened;
  std::unique_ptr<Tokenizer>& tokenizer = opened[name];
  if (!tokenizer) tokenizer = open_bpe(shared_data("tokenizers/" + name));
  return *tokenizer;
}

}  // namespace scaletrain
