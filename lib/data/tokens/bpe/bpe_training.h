// Training of byte-level byte-pair encoding (Sennrich et al. 2016): the most frequent pair of neighbouring tokens
// becomes a token, until there are as many as were asked for. Counts are kept up to date where a merge changes them, so
// that a merge costs time in the pieces that hold its pair.
//
// Of pairs that occur equally often the one with the lowest ids comes first, the left id before the right one: the rule
// of Hugging Face's `tokenizers`, whose BpeTrainer finds the same merges.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/tokens/bpe/piece_counter.h"

namespace scaletrain {

struct BpeTrainingOptions {
  std::int64_t vocab = 0;              // of all tokens; at least the special ones and 256
  std::vector<std::string> special{};  // the first ids
  std::uint64_t least_count = 1;       // a pair that occurs less often makes no token
};

struct TrainedBpe {
  std::vector<std::string> tokens{};  // by id: special ones as they were given, then bytes as vocab.json spells them
  std::size_t num_special = 0;
  std::vector<std::pair<std::int32_t, std::int32_t>> merges{};
};

// Ids of bytes are in the order of the characters that vocab.json has for them. Fewer tokens than were asked for where
// no pair is left. UserError: a vocabulary that is too small, special tokens that are empty, no UTF-8, equal or those
// of a byte.
TrainedBpe train_bpe(const std::vector<PieceCount>& pieces, const BpeTrainingOptions& options);

// By which patterns text can be cut into pieces.
enum class BpePattern { gpt2, llama3 };
std::string_view text_of(BpePattern pattern);

// A tokenizer.json.
std::string tokenizer_json(const TrainedBpe& trained, BpePattern pattern);

}  // namespace scaletrain
