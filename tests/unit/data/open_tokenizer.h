// A tokenizer as data.tokenizer names it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "data/tokens/tokenizer.h"

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

}  // namespace scaletrain
