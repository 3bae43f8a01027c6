// Small text tools that messages share.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace scaletrain {

// The candidate with the smallest edit distance to `word`, if it is near enough that a person would call it a slip:
// at most a third of the longer word's length, at least one edit, and never a mere coincidence of very short words.
// Case, and '-' against '_', do not count.
std::optional<std::string> nearest_word(std::string_view word, std::span<const std::string> candidates);

// "1.50 GiB", "12.0 MiB", "512 B".
std::string bytes_text(std::uint64_t bytes);

// "124,439,808".
std::string grouped_digits(std::uint64_t value);

// "1 rank", "1200 ranks"; with "es" for the ending "3 batches".
template <std::integral T>
std::string counted(T count, std::string_view noun, std::string_view ending = "s") {
  std::string text = std::to_string(count);
  text.append(1, ' ').append(noun);
  if (count != 1) text.append(ending);
  return text;
}

// "1 token", "124,439,808 tokens".
std::string grouped_count(std::uint64_t count, std::string_view noun);

// "2 h 5 min", "3 min 20 s", "4.2 s".
std::string duration_text(double seconds);

// The offset of the first byte that is not well-formed UTF-8, or nothing.
std::optional<std::size_t> first_invalid_utf8(std::string_view text);

// The text in lines of at most `width` bytes, broken at blanks and behind '|'; a word that is longer gets a line of its
// own. Each line but the first begins with `indent` blanks, which count; so do the first's, which the caller has
// written.
std::string wrapped_text(std::string_view text, std::size_t width, std::size_t indent);

std::vector<std::string> split_text(std::string_view text, char separator);

// Printable form for messages, in double quotes: control bytes and quotes escaped, at most `limit` bytes, then "...".
std::string quoted(std::string_view text, std::size_t limit = 80);
// A better match than std::quoted, which argument-dependent lookup would otherwise find for a string.
inline std::string quoted(const std::string& text, std::size_t limit = 80) {
  return quoted(std::string_view(text), limit);
}

}  // namespace scaletrain
