// What a SentencePiece model says of itself (sentencepiece_model.proto), as far as the library tells it to nobody:
// where a text may be cut depends on it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace scaletrain {

struct SentencePieceModel {
  enum class Kind { unigram = 1, bpe = 2, word = 3, character = 4 };
  enum class PieceKind { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  struct Piece {
    std::string text;
    PieceKind kind = PieceKind::normal;
    float score = 0.0F;  // BPE: of two pairs the one with the larger score is merged first
  };

  std::vector<Piece> pieces;  // by id
  Kind kind = Kind::unigram;
  std::string unknown_text = " \xe2\x81\x87 ";  // what an unknown token decodes to
  bool has_byte_fallback = false;
  bool has_space_behind = false;  // a word's space belongs to its end (treat_whitespace_as_suffix)
  bool has_rules = false;         // of normalisation
  bool has_decoding_rules = false;
  bool has_dummy_prefix = true;  // a space before a text that has none
  bool removes_spaces = true;    // at both ends, and all but one of several
  bool escapes_spaces = true;    // as U+2581
};

// InputError, which begins with `where`, for what is no such model, is damaged or has an id that is not there.
SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& where);

// The model that puts no space before a text: for what follows a part of a text that has one already.
std::string without_dummy_prefix(std::string_view bytes);

}  // namespace scaletrain
