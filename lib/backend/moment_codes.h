// Moments of an optimizer in 8 bits, block by block (Dettmers, Lewis, Shleifer and Zettlemoyer 2022, arXiv 2110.02861):
// of a block of elements the largest magnitude is kept as its scale, and of each element the code of the nearest number
// among 256 in [-1, 1], or [0, 1] for what is never negative. The numbers are those of dynamic tree quantisation as the
// authors' library has them: the code's leading zeros are an exponent of ten from -6 to 0, the bits behind them a
// fraction between 0.1 and 1, taken in the middle of its step.
//
// One difference: a second moment that is not zero never becomes zero. It would be divided by: an element whose
// gradient is small for its block, and then zero for a step, would be moved by its first moment over epsilon.
//
// A block of zeros has the scale 0, so memory that is filled with zeros is moments that are zero.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace scaletrain {

// Elements of a block at most, and at least.
inline constexpr std::int64_t most_in_moment_block = 256;
inline constexpr std::int64_t least_in_moment_block = 16;

struct MomentCodes {
  std::array<float, 256> values;  // ascending
  int smallest = 0;               // the code of the smallest number that one that is not zero becomes
};

// fraction_bits: behind no leading zeros; one fewer behind each further one.
constexpr MomentCodes make_moment_codes(int fraction_bits, bool is_signed, int smallest) {
  constexpr double powers[] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0};
  constexpr int exponents = 7;
  MomentCodes codes{};
  const std::size_t zero = is_signed ? 127 : 0;
  std::size_t number = 0;
  for (int exponent = 0; exponent < exponents; ++exponent) {
    const int count = 1 << (fraction_bits - (exponents - 1 - exponent));
    for (int i = 0; i < count; ++i) {
      const double fraction = 0.1 + 0.9 * (i + 0.5) / count;
      ++number;
      codes.values[zero + number] = static_cast<float>(fraction * powers[exponent]);
      if (is_signed) codes.values[zero - number] = -codes.values[zero + number];
    }
  }
  codes.values[zero + number + 1] = 1.0F;
  codes.smallest = smallest;
  return codes;
}

// Kernels of GPUs have tables that are made of these when they are compiled.
inline constexpr MomentCodes codes_of_first_moments = make_moment_codes(6, true, 0);    // [-1, 1]
inline constexpr MomentCodes codes_of_second_moments = make_moment_codes(7, false, 1);  // [0, 1]
constexpr const MomentCodes& first_moment_codes() {
  return codes_of_first_moments;
}
constexpr const MomentCodes& second_moment_codes() {
  return codes_of_second_moments;
}

// The number between two neighbours from which on the upper one is nearer: one formula for all devices.
constexpr float between_codes(const MomentCodes& codes, int lower) {
  return 0.5F * (codes.values[static_cast<std::size_t>(lower)] + codes.values[static_cast<std::size_t>(lower) + 1]);
}

template <class T>
void decode_moments(const std::uint8_t* codes, T scale, const MomentCodes& table, std::int64_t count, T* moments) {
  for (std::int64_t i = 0; i < count; ++i) moments[i] = static_cast<T>(table.values[codes[i]]) * scale;
}

// Returns the scale.
template <class T>
T encode_moments(const T* moments, const MomentCodes& table, std::int64_t count, std::uint8_t* codes) {
  T scale = 0;
  for (std::int64_t i = 0; i < count; ++i) scale = std::max(scale, std::abs(moments[i]));
  for (std::int64_t i = 0; i < count; ++i) {
    const T x = scale > 0 ? moments[i] / scale : T(0);
    int code = 0;
    for (int step = 128; step > 0; step /= 2)
      code += x >= static_cast<T>(between_codes(table, code + step - 1)) ? step : 0;
    codes[i] = static_cast<std::uint8_t>(x != 0 ? std::max(code, table.smallest) : code);
  }
  return scale;
}

}  // namespace scaletrain
