#include "data/tokens/json_record.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/text.h"

namespace scaletrain {
namespace {

constexpr int kMostNested = 16;
constexpr std::size_t kMostKeys = 24;       // of an object: each is compared with all others
constexpr std::size_t kLongestNumber = 40;  // no double overflows or loses what a parser would complain of

// A cursor over JSON text. Every take_ function returns false where it does not take what is there, and the answer to
// the whole is then left to another parser.
class JsonCursor {
 public:
  explicit JsonCursor(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  // The object, up to the end of the text.
  bool find(std::string_view field, std::string& out) {
    bool is_found = false;
    if (!take_object(0, field, &out, is_found)) return false;
    skip_space();
    return is_found && at_ == end_;
  }

 private:
  void skip_space() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\r' || *at_ == '\n')) ++at_;
  }
  bool take(char c) {
    skip_space();
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }
  bool take_word(std::string_view word) {
    if (!std::string_view(at_, static_cast<std::size_t>(end_ - at_)).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  // out: null for an object within another, whose strings nobody wants.
  bool take_object(int depth, std::string_view field, std::string* out, bool& is_found) {
    if (depth > kMostNested || !take('{')) return false;
    if (take('}')) return true;
    std::array<std::string_view, kMostKeys> keys;
    std::size_t num_keys = 0;
    do {
      skip_space();
      std::string_view key;
      if (num_keys == kMostKeys || !take_key(key)) return false;
      for (std::size_t i = 0; i < num_keys; ++i)
        if (keys[i] == key) return false;
      keys[num_keys++] = key;
      if (!take(':')) return false;
      skip_space();
      if (out != nullptr && key == field) {
        if (!take_string(out)) return false;
        is_found = true;
      } else if (!take_value(depth + 1)) {
        return false;
      }
    } while (take(','));
    return take('}');
  }

  bool take_array(int depth) {
    if (depth > kMostNested || !take('[')) return false;
    if (take(']')) return true;
    do {
      skip_space();
      if (!take_value(depth + 1)) return false;
    } while (take(','));
    return take(']');
  }

  bool take_value(int depth) {
    if (at_ == end_) return false;
    bool is_found = false;
    switch (*at_) {
      case '"':
        return take_string(nullptr);
      case '{':
        return take_object(depth, {}, nullptr, is_found);
      case '[':
        return take_array(depth);
      case 't':
        return take_word("true");
      case 'f':
        return take_word("false");
      case 'n':
        return take_word("null");
      default:
        return take_number();
    }
  }

  // -?(0|[1-9][0-9]*)(\.[0-9]+)?, not followed by an exponent.
  bool take_number() {
    const char* const begin = at_;
    if (at_ < end_ && *at_ == '-') ++at_;
    const char* const whole = at_;
    if (!take_digits() || (*whole == '0' && at_ - whole > 1)) return false;
    if (at_ < end_ && *at_ == '.') {
      ++at_;
      if (!take_digits()) return false;
    }
    return static_cast<std::size_t>(at_ - begin) <= kLongestNumber && (at_ == end_ || (*at_ != 'e' && *at_ != 'E'));
  }
  bool take_digits() {
    const char* const begin = at_;
    while (at_ < end_ && *at_ >= '0' && *at_ <= '9') ++at_;
    return at_ > begin;
  }

  bool take_key(std::string_view& key) {
    if (at_ == end_ || *at_ != '"') return false;
    const char* const begin = ++at_;
    skip_plain();
    if (at_ == end_ || *at_ != '"') return false;
    key = std::string_view(begin, static_cast<std::size_t>(at_ - begin));
    ++at_;
    return true;
  }

  bool take_string(std::string* out) {
    if (at_ == end_ || *at_ != '"') return false;
    ++at_;
    for (;;) {
      const char* const begin = at_;
      skip_plain();
      if (out != nullptr) out->append(begin, static_cast<std::size_t>(at_ - begin));
      if (at_ == end_) return false;
      if (*at_ == '"') {
        ++at_;
        return true;
      }
      if (*at_ != '\\' || !take_escape(out)) return false;
    }
  }

  // Up to a quote, a backslash or a control character: eight bytes at a time. A byte is below n where (byte - n)
  // borrows into its high bit and the byte itself has none; it is c where it is 0 after an exclusive or with c.
  void skip_plain() {
    constexpr std::uint64_t ones = 0x0101010101010101;
    constexpr std::uint64_t highs = 0x8080808080808080;
    std::uint64_t word = 0;
    for (; static_cast<std::size_t>(end_ - at_) >= sizeof(word); at_ += sizeof(word)) {
      std::memcpy(&word, at_, sizeof(word));
      const std::uint64_t quote = word ^ (ones * '"');
      const std::uint64_t slash = word ^ (ones * '\\');
      const std::uint64_t found =
          ((word - ones * 0x20) & ~word) | ((quote - ones) & ~quote) | ((slash - ones) & ~slash);
      if ((found & highs) != 0) break;
    }
    while (at_ < end_ && *at_ != '"' && *at_ != '\\' && static_cast<unsigned char>(*at_) >= 0x20) ++at_;
  }

  bool take_escape(std::string* out) {
    if (end_ - at_ < 2) return false;
    const char c = at_[1];
    at_ += 2;
    if (c == 'u') return take_code_point(out);
    constexpr std::string_view names = "\"\\/bfnrt";
    constexpr std::string_view meanings = "\"\\/\b\f\n\r\t";
    const std::size_t index = names.find(c);
    if (index == std::string_view::npos) return false;
    if (out != nullptr) out->push_back(meanings[index]);
    return true;
  }

  bool take_code_point(std::string* out) {
    constexpr int digits = 4;
    if (end_ - at_ < digits) return false;
    unsigned value = 0;
    for (int i = 0; i < digits; ++i) {
      const char c = *at_++;
      const char lower = static_cast<char>(c | 0x20);
      if (c >= '0' && c <= '9') {
        value = value << 4 | static_cast<unsigned>(c - '0');
      } else if (lower >= 'a' && lower <= 'f') {
        value = value << 4 | static_cast<unsigned>(lower - 'a' + 10);
      } else {
        return false;
      }
    }
    if (value >= 0xd800 && value < 0xe000) return false;
    if (out == nullptr) return true;
    if (value < 0x80) {
      out->push_back(static_cast<char>(value));
    } else if (value < 0x800) {
      out->push_back(static_cast<char>(0xc0 | value >> 6));
      out->push_back(static_cast<char>(0x80 | (value & 0x3f)));
    } else {
      out->push_back(static_cast<char>(0xe0 | value >> 12));
      out->push_back(static_cast<char>(0x80 | (value >> 6 & 0x3f)));
      out->push_back(static_cast<char>(0x80 | (value & 0x3f)));
    }
    return true;
  }

  const char* at_;
  const char* end_;
};

}  // namespace

bool find_string_member(std::string_view line, std::string_view field, std::string& out) {
  out.clear();
  return !first_invalid_utf8(line) && JsonCursor(line).find(field, out);
}

}  // namespace scaletrain
