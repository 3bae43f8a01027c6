// The bytes of a tokenizer.model. Accepted: its pieces fit into it, and without its dummy prefix it is a model with the
// same pieces that puts no space before a text. The library that then reads it is not ours to look at.
#include "base/error.h"
#include "data/tokens/sentencepiece/model_file.h"
#include "fuzz/target.h"

namespace scaletrain {
namespace {

void read(std::string_view bytes) {
  try {
    const SentencePieceModel model = parse_sentencepiece_model(bytes, "input");
    std::size_t texts = 0;
    for (const SentencePieceModel::Piece& piece : model.pieces) texts += piece.text.size();
    SCALETRAIN_CHECK_LE(texts, bytes.size());
    SCALETRAIN_CHECK_LE(model.pieces.size(), bytes.size());
    const SentencePieceModel rest = parse_sentencepiece_model(without_dummy_prefix(bytes), "input without prefix");
    SCALETRAIN_CHECK(!rest.has_dummy_prefix);
    SCALETRAIN_CHECK_EQ(rest.pieces.size(), model.pieces.size());
    for (std::size_t i = 0; i < model.pieces.size(); ++i)
      SCALETRAIN_CHECK_EQ(rest.pieces[i].text, model.pieces[i].text);
  } catch (const InputError&) {  // refused
  }
}

}  // namespace
}  // namespace scaletrain

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  scaletrain::read(scaletrain::fuzz::text_of(data, size));
  return 0;
}
