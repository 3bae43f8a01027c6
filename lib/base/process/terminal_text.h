// Text of any origin as a terminal may show it.
#pragma once

#include <string>
#include <string_view>

namespace scaletrain {

// Control characters but newline and tab (C0, DEL, C1) and bytes that are not well-formed UTF-8 become "\x1b"; the rest
// stays. The text comes in pieces, which may end within a character.
class TerminalText {
 public:
  // What is known by now: of this piece, and of what was held back before.
  std::string add(std::string_view piece);
  // What was held back: the beginning of a character that did not come.
  std::string finish();

 private:
  std::string pending_;
};

}  // namespace scaletrain
