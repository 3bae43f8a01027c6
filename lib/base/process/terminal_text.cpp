#include "base/process/terminal_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace scaletrain {

namespace {

std::string escaped_bytes(std::string_view bytes) {
  std::string out;
  for (const char byte : bytes) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return out;
}

// Of the character that begins with this byte; 1 where none of several bytes does.
std::size_t utf8_length(char first) {
  const auto byte = static_cast<unsigned char>(first);
  if (byte < 0xC2 || byte > 0xF4) return 1;
  return byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

// A well-formed character.
bool may_be_shown(std::string_view character) {
  const auto first = static_cast<unsigned char>(character.front());
  if (character.size() == 1) return (first >= 0x20 && first != 0x7F) || first == '\n' || first == '\t';
  // U+0080 to U+009F.
  return first != 0xC2 || static_cast<unsigned char>(character[1]) >= 0xA0;
}

}  // namespace

std::string TerminalText::add(std::string_view piece) {
  pending_ += piece;
  std::string out;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    std::string_view character = rest.substr(0, utf8_length(rest.front()));
    const bool is_cut = character.size() < utf8_length(rest.front()) &&
                        std::all_of(character.begin() + 1, character.end(), is_continuation);
    if (is_cut) break;
    const bool is_whole = !first_invalid_utf8(character).has_value();
    if (!is_whole) character = rest.substr(0, 1);
    out += is_whole && may_be_shown(character) ? std::string(character) : escaped_bytes(character);
    rest.remove_prefix(character.size());
  }
  pending_.erase(0, pending_.size() - rest.size());
  return out;
}

std::string TerminalText::finish() {
  return escaped_bytes(std::exchange(pending_, {}));
}

}  // namespace scaletrain
