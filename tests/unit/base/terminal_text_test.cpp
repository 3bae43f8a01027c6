#include "base/process/terminal_text.h"

#include <doctest/doctest.h>

#include <string>

using namespace scaletrain;

namespace {

// Given whole, and byte by byte, which must not differ.
std::string shown(const std::string& text) {
  TerminalText whole;
  std::string out = whole.add(text);
  out += whole.finish();
  TerminalText bytes;
  std::string pieces;
  for (const char byte : text) pieces += bytes.add(std::string(1, byte));
  pieces += bytes.finish();
  CHECK(pieces == out);
  return out;
}

}  // namespace

TEST_CASE("a_terminal_is_shown_text_and_no_control_characters") {
  CHECK(shown("a line\n\tanother \"one\" \\ ~") == "a line\n\tanother \"one\" \\ ~");
  CHECK(shown("\x1b]0;title\x07\x1b[31m") == "\\x1b]0;title\\x07\\x1b[31m");
  CHECK(shown("\r\x08\x7f") == "\\x0d\\x08\\x7f");
  CHECK(shown(std::string("a\0b", 3)) == "a\\x00b");
  CHECK(shown("\xc2\x9b"
              "31m\xc2\x80\xc2\x9f\xc2\xa0") == "\\xc2\\x9b31m\\xc2\\x80\\xc2\\x9f\xc2\xa0");
}

TEST_CASE("a_terminal_is_shown_characters_of_several_bytes_and_what_is_not_utf8_as_bytes") {
  CHECK(shown("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8e\xb2") == "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8e\xb2");
  CHECK(shown("\x9b\xff\xfe\x80") == "\\x9b\\xff\\xfe\\x80");
  CHECK(shown("\xc3(") == "\\xc3(");
  CHECK(shown("\xe2\x82(") == "\\xe2\\x82(");
  CHECK(shown("\xc0\x9b\xed\xa0\x80") == "\\xc0\\x9b\\xed\\xa0\\x80");  // overlong; a surrogate
  CHECK(shown("\xe2\x82") == "\\xe2\\x82");
  // A control character behind the beginning of another one does not hide in it.
  CHECK(shown("\xe2\x1b[") == "\\xe2\\x1b[");
  TerminalText text;
  CHECK(text.add("\xe2\x82").empty());
  CHECK(text.add("\xac!") == "\xe2\x82\xac!");
}
