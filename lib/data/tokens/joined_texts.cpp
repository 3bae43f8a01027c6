#include <fmt/format.h>

#include <cstddef>
#include <iterator>

#include "base/error.h"
#include "data/tokens/tokenizer.h"

namespace scaletrain {

std::string joined_texts(std::span<const std::string> texts, std::span<const std::int32_t> tokens) {
  std::string text;
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= std::ssize(texts))
      throw InputError(fmt::format("token {} cannot be decoded: the tokenizer has the tokens 0 to {}", token,
                                   std::ssize(texts) - 1));
    text += texts[static_cast<std::size_t>(token)];
  }
  return text;
}

}  // namespace scaletrain
