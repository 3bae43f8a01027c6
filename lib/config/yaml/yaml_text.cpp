#include "config/yaml/yaml_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace scaletrain {

namespace {

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_letter_or_digit(char c) {
  return is_letter(c) || (c >= '0' && c <= '9');
}

// Words that some key or some YAML reader takes for something else than text.
bool is_word_with_meaning(std::string_view text) {
  constexpr std::array<std::string_view, 10> words = {"null", "true", "false", "auto", "dynamic",
                                                      "yes",  "no",   "on",    "off",  "none"};
  std::string folded(text);
  std::transform(folded.begin(), folded.end(), folded.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::find(words.begin(), words.end(), folded) != words.end();
}

bool is_safe_plain(std::string_view text) {
  if (text.empty() || !(is_letter(text[0]) || text[0] == '/' || text[0] == '_')) return false;
  const bool has_safe_bytes = std::all_of(text.begin(), text.end(), [](char c) {
    return is_letter_or_digit(c) || c == '/' || c == '_' || c == '-' || c == '.';
  });
  return has_safe_bytes && !is_word_with_meaning(text);
}

}  // namespace

std::string yaml_scalar(std::string_view text) {
  if (is_safe_plain(text)) return std::string(text);
  std::string out = "\"";
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '$' && i + 1 < text.size() && text[i + 1] == '{') {
      out += "$$";
    } else if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace scaletrain
