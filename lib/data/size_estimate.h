// How many tokens a source holds, guessed from the sizes of its files: no file is opened. For planning; a run counts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "config/config.h"

namespace scaletrain {

struct SizeEstimate {
  std::uint64_t tokens = 0;
  std::string basis;  // "a byte a token", "2 bytes a token", "at most a byte a token"
};

// Nothing where nothing is there, or where what a token takes of a file is not known (a tokenizer of words or parts of
// words, a compressed file, instructions). vocab: of the model. Never throws.
std::optional<SizeEstimate> estimate_tokens(const SourceConfig& source, const TokenizerConfig& tokenizer,
                                            std::int64_t vocab) noexcept;

}  // namespace scaletrain
