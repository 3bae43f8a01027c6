#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace scaletrain {
namespace {

std::string folded(std::string_view word) {
  std::string out(word);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (c == '-') c = '_';
  }
  return out;
}

// Insertions, deletions, substitutions and swaps of neighbours (optimal string alignment).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1);
  std::vector<std::size_t> above(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, substituted});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

// The length of the well-formed UTF-8 sequence that begins at `at`, or 0 (Unicode standard, table 3-7).
std::size_t utf8_sequence(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) -> unsigned {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u;
  };
  const auto continues = [&](std::size_t i) { return (byte(i) & 0xC0u) == 0x80u; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return continues(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    if (!continues(1) || !continues(2)) return 0;
    if (lead == 0xE0 && byte(1) < 0xA0) return 0;   // overlong
    if (lead == 0xED && byte(1) >= 0xA0) return 0;  // surrogate
    return 3;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    if (!continues(1) || !continues(2) || !continues(3)) return 0;
    if (lead == 0xF0 && byte(1) < 0x90) return 0;   // overlong
    if (lead == 0xF4 && byte(1) >= 0x90) return 0;  // beyond U+10FFFF
    return 4;
  }
  return 0;
}

}  // namespace

std::optional<std::string> nearest_word(std::string_view word, std::span<const std::string> candidates) {
  constexpr std::size_t longest = 256;  // no name of ours is longer, and the distance is quadratic
  if (word.empty() || word.size() > longest) return std::nullopt;
  const std::string wanted = folded(word);
  const std::string* best = nullptr;
  std::size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    const std::size_t longer = std::max(word.size(), candidate.size());
    if (candidate.empty() || candidate.size() > longest) continue;
    const std::size_t distance = edit_distance(wanted, folded(candidate));
    // One edit makes any two-letter word out of any other that shares a letter.
    const std::size_t allowed = longer < 3 ? 0 : std::max<std::size_t>(1, longer / 3);
    if (distance > allowed) continue;
    if (best == nullptr || distance < best_distance) {
      best = &candidate;
      best_distance = distance;
    }
  }
  if (best == nullptr) return std::nullopt;
  return *best;
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array<const char*, 7> units = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1023.5 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, decimals, units[unit]);
}

std::string grouped_digits(std::uint64_t value) {
  std::string text = fmt::format("{}", value);
  for (std::size_t at = text.size(); at > 3;) {
    at -= 3;
    text.insert(at, 1, ',');
  }
  return text;
}

std::string grouped_count(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", grouped_digits(count), noun, count == 1 ? "" : "s");
}

std::string duration_text(double seconds) {
  if (!(seconds >= 0) || seconds > 1e15) return "unknown";
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::int64_t>(std::floor(seconds + 0.5));
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  const std::int64_t minutes = whole / 60;
  if (minutes < 24 * 60) return fmt::format("{} h {} min", minutes / 60, minutes % 60);
  return fmt::format("{} d {} h", grouped_digits(static_cast<std::uint64_t>(minutes / (24 * 60))), minutes / 60 % 24);
}

namespace {

// Where the bytes below 0x80 from `at` on end: eight at a time, since most of most text is of them.
std::size_t end_of_ascii(std::string_view text, std::size_t at) {
  constexpr std::uint64_t high_bits = 0x8080808080808080;
  std::uint64_t word = 0;
  for (; at + sizeof(word) <= text.size(); at += sizeof(word)) {
    std::memcpy(&word, text.data() + at, sizeof(word));
    if ((word & high_bits) != 0) break;
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
  return at;
}

}  // namespace

std::optional<std::size_t> first_invalid_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    at = end_of_ascii(text, at);
    if (at == text.size()) break;
    const std::size_t length = utf8_sequence(text, at);
    if (length == 0) return at;
    at += length;
  }
  return std::nullopt;
}

std::string wrapped_text(std::string_view text, std::size_t width, std::size_t indent) {
  std::string out;
  std::size_t column = indent;
  std::size_t blanks = 0;  // before the next word
  while (!text.empty()) {
    const std::size_t end = text.find_first_of(" |");
    const std::size_t length = end == std::string_view::npos ? text.size() : text[end] == '|' ? end + 1 : end;
    if (length > 0) {
      if (column > indent && column + blanks + length > width) {
        out += "\n" + std::string(indent, ' ');
        column = indent;
      } else {
        out.append(blanks, ' ');
        column += blanks;
      }
      out += text.substr(0, length);
      column += length;
      text.remove_prefix(length);
    }
    for (blanks = 0; text.starts_with(' '); ++blanks) text.remove_prefix(1);
  }
  return out;
}

std::vector<std::string> split_text(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string quoted(std::string_view text, std::size_t limit) {
  std::string out = "\"";
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t length = utf8_sequence(text, at);
    if (at + std::max<std::size_t>(length, 1) > limit) return out + "\"...";
    const auto byte = static_cast<unsigned char>(text[at]);
    if (length > 1) {
      out += text.substr(at, length);
    } else if (byte == '\n') {
      out += "\\n";
    } else if (byte == '\t') {
      out += "\\t";
    } else if (byte == '"' || byte == '\\') {
      out += '\\';
      out += static_cast<char>(byte);
    } else if (length == 0 || byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += static_cast<char>(byte);
    }
    at += std::max<std::size_t>(length, 1);
  }
  return out + "\"";
}

}  // namespace scaletrain
