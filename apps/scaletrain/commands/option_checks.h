// Checks of numbers on the command line. They read the text itself: a conversion would let -3 wrap into a number
// without a sign, and NaN pass every comparison. Their messages follow the option's name and a colon.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "config/keys/number_text.h"

namespace scaletrain {

// With the suffixes of a config's numbers: 16Ki, 2M, 1e3. For Option::transform, which writes the number out.
inline CLI::Validator whole_number(std::uint64_t least,
                                   std::uint64_t most = std::uint64_t(std::numeric_limits<std::int64_t>::max())) {
  const auto check = [least, most](std::string& text) -> std::string {
    if (const auto number = parse_integer(text)) text = std::to_string(*number);
    std::uint64_t value = 0;
    const char* const begin = text.data();
    const char* const end = begin + text.size();
    const bool is_negative = text.starts_with('-');
    const auto [stop, error] = std::from_chars(begin + (is_negative ? 1 : 0), end, value);
    if (stop != end || error == std::errc::invalid_argument)
      return "must be a whole number such as 16 or 4K, not " + text;
    if ((is_negative && value != 0) || (error == std::errc() && value < least))
      return "must be at least " + std::to_string(least) + ", not " + text;
    if (error != std::errc() || value > most) return "must be at most " + std::to_string(most) + ", not " + text;
    return {};
  };
  return CLI::Validator(check, "");
}

// The number that the text is, all of it; nothing: it is none.
inline std::optional<double> whole_text_number(const std::string& text) {
  double value = 0.0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return value;
}

inline CLI::Validator number_between(int least, int most) {
  const auto check = [least, most](const std::string& text) -> std::string {
    const auto value = whole_text_number(text);
    if (value && *value >= least && *value <= most) return {};
    return "must be a number from " + std::to_string(least) + " to " + std::to_string(most) + ", not " + text;
  };
  return CLI::Validator(check, "");
}

inline CLI::Validator number_above_zero(int most) {
  const auto check = [most](const std::string& text) -> std::string {
    const auto value = whole_text_number(text);
    if (value && *value > 0 && *value <= most) return {};
    return "must be a number above 0, at most " + std::to_string(most) + ", not " + text;
  };
  return CLI::Validator(check, "");
}

}  // namespace scaletrain
