// A SentencePiece model as a tokenizer.json, for programs that do not have Google's library.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "data/tokens/sentencepiece/model_file.h"

namespace scaletrain {

// Byte-pair encoding without rules of normalisation and with all spaces kept, as Llama 2's and Mistral's are; nothing
// for other models. Merges are the pairs of pieces that make a piece, the largest score first, as the library takes
// them; only where two pairs make the same piece may it take them in another order. begin: stands before a text.
std::optional<std::string> sentencepiece_json(const SentencePieceModel& model, std::optional<std::int64_t> begin);

}  // namespace scaletrain
