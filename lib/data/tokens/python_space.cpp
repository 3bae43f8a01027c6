#include "data/tokens/python_space.h"

#include <algorithm>
#include <string>

#include "data/tokens/bpe/unicode.h"

namespace scaletrain {

namespace {

bool is_python_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

// From the first character that is no white space to the end of the last one; both 0: there is none.
struct Kept {
  std::size_t first = 0, end = 0;
};
Kept kept_of(std::string_view text) {
  const std::string terminated(text);
  Kept kept;
  for (std::size_t at = 0; at < text.size();) {
    int malformed = 0;
    const int length = utf8_length_at(text, at, malformed);
    const std::size_t next = at + static_cast<std::size_t>(length > 0 ? length : malformed);
    if (length == 0 || !is_python_space(decode_utf8(terminated.c_str() + at).code_point)) {
      if (kept.end == 0) kept.first = at;
      kept.end = next;
    }
    at = next;
  }
  return kept;
}

}  // namespace

std::string_view python_strip(std::string_view text) {
  const Kept kept = kept_of(text);
  return text.substr(kept.first, kept.end - kept.first);
}

std::string_view python_rstrip(std::string_view text) {
  return text.substr(0, kept_of(text).end);
}

}  // namespace scaletrain
