// The text of a tokenizer.json. Accepted: a tokenizer can be made of it, or is refused for what decides no memory, and
// all of its tokens have texts. Nothing is encoded: a pattern may take any time.
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/tokens/bpe/bpe_tokenizer.h"
#include "fuzz/target.h"

namespace scaletrain {
namespace {

void read(std::string_view text) {
  try {
    const BpeTokenizer tokenizer(parse_tokenizer_json(text, "input"), std::nullopt);
    std::vector<std::int32_t> all(static_cast<std::size_t>(tokenizer.vocab_size()));
    std::iota(all.begin(), all.end(), 0);
    SCALETRAIN_CHECK(tokenizer.decode(all).size() <= 8 * text.size());
    SCALETRAIN_CHECK(tokenizer.end_of_document().has_value());
  } catch (const InputError&) {  // refused
  } catch (const UserError&) {
  }
}

}  // namespace
}  // namespace scaletrain

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  scaletrain::read(scaletrain::fuzz::text_of(data, size));
  return 0;
}
