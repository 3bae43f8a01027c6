// Numbers, times and sizes as people write them: 10B, 2.5M, 512Ki, 6e-4, 90s, 30m, 2h, 4GiB. Nothing if the text is not
// wholly such a number. Locale plays no part.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace scaletrain {

// Decimal suffixes K, M, B (or G), T and binary Ki, Mi, Gi, Ti. A fraction or exponent is fine where the result is
// whole ("2.5M", "1e9"). A leading zero is refused ("010": eight in one YAML, ten in another), as is what 64 bits do
// not hold.
std::optional<std::int64_t> parse_integer(std::string_view text);

// The same suffixes on a decimal number; never infinite or NaN, and never a non-zero text rounded to zero.
std::optional<double> parse_number(std::string_view text);

// A non-negative number with ms, s, m, h or d; in seconds.
std::optional<double> parse_duration(std::string_view text);

// A non-negative whole number of bytes: plain, or with B, KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB.
std::optional<std::uint64_t> parse_size(std::string_view text);

// The shortest text that parse_number reads back to the same bits.
std::string number_text(double value);

}  // namespace scaletrain
