#include "config/keys/number_text.h"

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <cmath>
#include <limits>

namespace scaletrain {

namespace {

__extension__ using Wide = unsigned __int128;

struct Suffix {
  std::string_view text;
  std::uint64_t factor;
};

// Longest first, so that "Ki" is not taken for a number that ends in "i".
constexpr std::array<Suffix, 9> kCountSuffixes = {{{"Ki", std::uint64_t{1} << 10},
                                                   {"Mi", std::uint64_t{1} << 20},
                                                   {"Gi", std::uint64_t{1} << 30},
                                                   {"Ti", std::uint64_t{1} << 40},
                                                   {"K", 1000},
                                                   {"M", 1000000},
                                                   {"B", 1000000000},
                                                   {"G", 1000000000},
                                                   {"T", 1000000000000}}};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::uint64_t take_count_suffix(std::string_view& text) {
  for (const Suffix& suffix : kCountSuffixes) {
    if (text.ends_with(suffix.text)) {
      text.remove_suffix(suffix.text.size());
      return suffix.factor;
    }
  }
  return 1;
}

// Digits, at most one point with digits on both sides, an optional exponent, no sign.
bool is_decimal(std::string_view text) {
  std::size_t i = 0;
  const auto digits = [&] {
    const std::size_t start = i;
    while (i < text.size() && is_digit(text[i])) ++i;
    return i > start;
  };
  const bool has_whole = digits();
  if (has_whole && i > 1 && text[0] == '0') return false;
  if (i < text.size() && text[i] == '.') {
    ++i;
    const bool has_fraction = digits();
    if (!has_whole && !has_fraction) return false;
  } else if (!has_whole) {
    return false;
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    if (i < text.size() && (text[i] == '+' || text[i] == '-')) ++i;
    if (!digits()) return false;
  }
  return i == text.size();
}

bool take_sign(std::string_view& text) {
  if (text.empty() || (text[0] != '-' && text[0] != '+')) return false;
  const bool is_negative = text[0] == '-';
  text.remove_prefix(1);
  return is_negative;
}

// mantissa * 10^exponent * factor exactly, or nothing if that is no whole number of 64 bits.
std::optional<std::uint64_t> exact_whole(std::uint64_t mantissa, int exponent, std::uint64_t factor) {
  constexpr Wide most = std::numeric_limits<std::uint64_t>::max();
  if (mantissa == 0) return 0;
  Wide value = static_cast<Wide>(mantissa) * factor;  // below 2^64 * 2^40
  for (; exponent > 0; --exponent) {
    value *= 10;
    if (value > most) return std::nullopt;
  }
  for (; exponent < 0; ++exponent) {
    if (value % 10 != 0) return std::nullopt;
    value /= 10;
  }
  if (value > most) return std::nullopt;
  return static_cast<std::uint64_t>(value);
}

// A decimal without sign, exactly.
std::optional<std::uint64_t> parse_whole(std::string_view text, std::uint64_t factor) {
  if (!is_decimal(text)) return std::nullopt;
  std::uint64_t mantissa = 0;
  int exponent = 0;
  bool in_fraction = false;
  std::size_t i = 0;
  for (; i < text.size() && text[i] != 'e' && text[i] != 'E'; ++i) {
    if (text[i] == '.') {
      in_fraction = true;
      continue;
    }
    const auto digit = static_cast<std::uint64_t>(text[i] - '0');
    if (mantissa > (std::numeric_limits<std::uint64_t>::max() - digit) / 10) return std::nullopt;
    mantissa = mantissa * 10 + digit;
    if (in_fraction) --exponent;
  }
  if (i < text.size()) {
    ++i;
    if (text[i] == '+') ++i;
    int written = 0;
    const auto [end, error] = std::from_chars(text.data() + i, text.data() + text.size(), written);
    if (error != std::errc() || end != text.data() + text.size() || std::abs(written) > 400) return std::nullopt;
    exponent += written;
  }
  return exact_whole(mantissa, exponent, factor);
}

std::optional<double> parse_decimal(std::string_view text) {
  const bool is_negative = take_sign(text);
  if (!is_decimal(text)) return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return is_negative ? -value : value;
}

}  // namespace

std::optional<std::int64_t> parse_integer(std::string_view text) {
  const bool is_negative = take_sign(text);
  const std::uint64_t factor = take_count_suffix(text);
  const auto magnitude = parse_whole(text, factor);
  constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (!magnitude || *magnitude > most) return std::nullopt;
  const auto value = static_cast<std::int64_t>(*magnitude);
  return is_negative ? -value : value;
}

std::optional<double> parse_number(std::string_view text) {
  const std::uint64_t factor = take_count_suffix(text);
  const auto value = parse_decimal(text);
  if (!value) return std::nullopt;
  const double scaled = *value * static_cast<double>(factor);
  if (!std::isfinite(scaled)) return std::nullopt;
  return scaled;
}

std::optional<double> parse_duration(std::string_view text) {
  struct Unit {
    std::string_view text;
    double seconds;
  };
  constexpr std::array<Unit, 5> units = {{{"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}}};
  for (const Unit& unit : units) {
    if (!text.ends_with(unit.text)) continue;
    text.remove_suffix(unit.text.size());
    const auto value = parse_decimal(text);
    if (!value || *value < 0 || !std::isfinite(*value * unit.seconds)) return std::nullopt;
    return *value * unit.seconds;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> parse_size(std::string_view text) {
  constexpr std::array<Suffix, 9> units = {{{"KiB", std::uint64_t{1} << 10},
                                            {"MiB", std::uint64_t{1} << 20},
                                            {"GiB", std::uint64_t{1} << 30},
                                            {"TiB", std::uint64_t{1} << 40},
                                            {"KB", 1000},
                                            {"MB", 1000000},
                                            {"GB", 1000000000},
                                            {"TB", 1000000000000},
                                            {"B", 1}}};
  for (const Suffix& unit : units) {
    if (!text.ends_with(unit.text)) continue;
    return parse_whole(text.substr(0, text.size() - unit.text.size()), unit.factor);
  }
  return parse_whole(text, 1);
}

std::string number_text(double value) {
  return fmt::format("{}", value);
}

}  // namespace scaletrain
