// Code points: UTF-8, general categories (Unicode 16.0) and normalisation form C (Unicode 9.0), each of the version
// that Hugging Face's `tokenizers` has, since ids depend on it. No locale, no scripts.
//
// Text is valid UTF-8 unless a function says otherwise. Everything may be called concurrently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace scaletrain {

// In the order of unicode_tables.cpp. The control characters that are white space (U+0009 to U+000D, U+0085) have a
// value of their own, so that white space is a set of categories as well.
enum class Category : std::uint8_t {
  Lu,
  Ll,
  Lt,
  Lm,
  Lo,
  Mn,
  Mc,
  Me,
  Nd,
  Nl,
  No,
  Pc,
  Pd,
  Ps,
  Pe,
  Pi,
  Pf,
  Po,
  Sm,
  Sc,
  Sk,
  So,
  Zs,
  Zl,
  Zp,
  Cc,
  Cf,
  Cs,
  Co,
  Cn,
  space_control
};
inline constexpr int kNumCategories = 31;

constexpr std::uint32_t category_bit(Category category) {
  return 1u << static_cast<unsigned>(category);
}
// \s of regular expressions, and what strips the surroundings of added tokens.
inline constexpr std::uint32_t kSpaceCategories = category_bit(Category::Zs) | category_bit(Category::Zl) |
                                                  category_bit(Category::Zp) | category_bit(Category::space_control);

// The categories that a name of \p{...} stands for: "L", "Lu", "Letter"; nothing if it is none.
std::optional<std::uint32_t> categories_of(std::string_view name);

class CodePoints {
 public:
  static const CodePoints& get();

  Category category(char32_t c) const { return static_cast<Category>(flags_[c] & kCategoryMask); }
  bool is_space(char32_t c) const { return (kSpaceCategories >> (flags_[c] & kCategoryMask) & 1) != 0; }
  // \w as single_word of added tokens means it: letters, marks, decimal digits, connectors, joiners.
  bool is_word(char32_t c) const;
  // Starts anew: neither it nor what comes before it changes by NFC on account of the other.
  bool is_stable(char32_t c) const { return (flags_[c] & kUnstable) == 0; }
  // NFC may make another character of it and of what follows.
  bool may_compose(char32_t c) const { return (flags_[c] & kComposes) != 0; }

 private:
  static constexpr std::uint8_t kCategoryMask = 0x1f;
  static constexpr std::uint8_t kUnstable = 0x20;
  static constexpr std::uint8_t kComposes = 0x40;

  CodePoints();
  std::vector<std::uint8_t> flags_;  // of each code point
};

struct Decoded {
  char32_t code_point;
  int length;  // bytes
};

// The character at `text`, of valid UTF-8 and not at its end.
inline Decoded decode_utf8(const char* text) {
  const auto byte = [text](int i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xe0) return {(lead & 0x1f) << 6 | (byte(1) & 0x3f), 2};
  if (lead < 0xf0) return {(lead & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f), 3};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f), 4};
}

// Where the character begins that ends at `end`, which is not the text's beginning.
inline const char* previous_utf8(const char* end) {
  do --end;
  while ((static_cast<unsigned char>(*end) & 0xc0) == 0x80);
  return end;
}

// Of any bytes: the length of the well-formed character at `offset`, or 0 if there is none. Then `malformed` becomes
// the length of what one U+FFFD stands for (the longest beginning of a character, at least one byte: what Python's
// decode("utf-8", "replace"), Rust's from_utf8_lossy and the Unicode standard's chapter 3.9 do).
int utf8_length_at(std::string_view text, std::size_t offset, int& malformed);

// Of any bytes: the last place between two well-formed characters x and y for which is_cut(x, y); 0 if there is none.
template <class IsCut>
std::size_t last_cut(std::string_view text, IsCut is_cut) {
  // The last two whole characters before the end, then those before them: characters are known by their lead bytes.
  int malformed = 0;
  std::size_t after = 0;  // where y begins; 0: not yet known
  char32_t y = 0;
  for (std::size_t at = text.size(); at > 0;) {
    --at;
    if ((static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) continue;
    const int length = utf8_length_at(text, at, malformed);
    if (length == 0) {
      after = 0;
      continue;
    }
    const char32_t x = decode_utf8(text.data() + at).code_point;
    if (after == at + static_cast<std::size_t>(length) && is_cut(x, y)) return after;
    after = at;
    y = x;
  }
  return 0;
}

// Any bytes as valid UTF-8: the same text, or U+FFFD in place of what is malformed.
std::string replace_malformed_utf8(std::string_view text);
bool is_valid_utf8(std::string_view text);

void append_utf8(char32_t c, std::string& text);

// The text's normalisation form C. Nothing: the text has it already.
std::optional<std::string> normalize_nfc(std::string_view text);

}  // namespace scaletrain
