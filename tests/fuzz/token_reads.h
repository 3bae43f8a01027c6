// What holds of every token file that is accepted: documents follow each other up to the last token, and every token
// can be read or is refused.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <span>

#include "base/error.h"
#include "data/tokens/token_file.h"

namespace scaletrain::fuzz {

inline void check_accepted(const TokenFile& file) {
  std::int64_t end = 0;
  for (std::int64_t document = 0; document < file.num_documents(); ++document) {
    SCALETRAIN_CHECK(file.document_end(document) >= end);
    end = file.document_end(document);
  }
  SCALETRAIN_CHECK_EQ(end, file.num_tokens());
  std::array<std::int32_t, 64> tokens{};
  for (std::int64_t first = 0; first < file.num_tokens(); first += std::ssize(tokens)) {
    const auto count = static_cast<std::size_t>(std::min(std::ssize(tokens), file.num_tokens() - first));
    file.read(first, std::span(tokens).first(count), 50257);
  }
}

inline void open_tokens(const std::filesystem::path& path) {
  try {
    check_accepted(*open_token_file(path));
  } catch (const InputError&) {  // refused
  }
}

}  // namespace scaletrain::fuzz
