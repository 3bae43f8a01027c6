// Conversions are compared with the formats' definitions, computed with ldexp on exact doubles.
#include "tensor/dtype.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"

using namespace scaletrain;

namespace {

// A 16-bit floating format: one sign bit, then exponent_bits, then the fraction.
struct HalfFormat {
  const char* name;
  DType dtype;
  int exponent_bits;
  std::uint16_t (*encode)(float);
  float (*decode)(std::uint16_t);

  int fraction_bits() const { return 15 - exponent_bits; }
  std::uint32_t infinity_code() const { return ((1u << exponent_bits) - 1) << fraction_bits(); }
  int smallest_exponent() const { return 2 - (1 << (exponent_bits - 1)); }  // of normal numbers

  // The value of a non-negative finite code. The infinity's code gives the next power of two: where rounding overflows.
  double value(std::uint32_t code) const {
    const auto exponent = static_cast<int>(code >> fraction_bits());
    const auto fraction = static_cast<double>(code & ((1u << fraction_bits()) - 1));
    const double unit = std::ldexp(1.0, smallest_exponent() - fraction_bits());
    if (exponent == 0) return fraction * unit;
    return std::ldexp((std::ldexp(1.0, fraction_bits()) + fraction) * unit, exponent - 1);
  }
};

const HalfFormat formats[] = {{"bf16", DType::bf16, 8, bf16_from_float, float_from_bf16},
                              {"f16", DType::f16, 5, f16_from_float, float_from_f16}};

std::uint16_t from_double(const HalfFormat& format, double value) {
  std::uint16_t code = 0;
  convert_floats(DType::f64, &value, format.dtype, &code, 1);
  return code;
}

}  // namespace

TEST_CASE("every_16_bit_code_decodes_to_the_value_of_its_format") {
  for (const HalfFormat& format : formats) {
    CAPTURE(format.name);
    int wrong = 0;
    for (std::uint32_t code = 0; code < 0x10000u; ++code) {
      const std::uint32_t magnitude = code & 0x7fffu;
      const float decoded = format.decode(static_cast<std::uint16_t>(code));
      bool good = std::signbit(decoded) == (code >= 0x8000u);
      if (magnitude > format.infinity_code()) {
        good = std::isnan(decoded);
      } else if (magnitude == format.infinity_code()) {
        good = good && std::isinf(decoded);
      } else {
        good = good && std::fabs(static_cast<double>(decoded)) == format.value(magnitude);
      }
      wrong += good ? 0 : 1;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("every_16_bit_code_survives_the_round_trip_and_nan_stays_nan") {
  for (const HalfFormat& format : formats) {
    CAPTURE(format.name);
    int wrong = 0;
    for (std::uint32_t code = 0; code < 0x10000u; ++code) {
      const float decoded = format.decode(static_cast<std::uint16_t>(code));
      const std::uint16_t back = format.encode(decoded);
      const std::uint16_t back_from_double = from_double(format, static_cast<double>(decoded));
      if ((code & 0x7fffu) > format.infinity_code()) {
        wrong += (back & 0x7fffu) > format.infinity_code() && (back & 0x8000u) == (code & 0x8000u) ? 0 : 1;
        wrong += (back_from_double & 0x7fffu) > format.infinity_code() ? 0 : 1;
      } else {
        wrong += back == code && back_from_double == code ? 0 : 1;
      }
    }
    CHECK(wrong == 0);
    // A payload in the low bits only must not be cut down to an infinity.
    for (const std::uint32_t bits : {0x7f800001u, 0xff800001u, 0x7fc00000u, 0x7fffffffu})
      CHECK((format.encode(std::bit_cast<float>(bits)) & 0x7fffu) > format.infinity_code());
  }
}

TEST_CASE("floats_between_two_codes_round_to_the_nearest_and_ties_to_the_even_code") {
  for (const HalfFormat& format : formats) {
    CAPTURE(format.name);
    int wrong = 0;
    for (std::uint32_t code = 0; code < format.infinity_code(); ++code) {
      const double middle = 0.5 * (format.value(code) + format.value(code + 1));
      const auto exact = static_cast<float>(middle);
      if (static_cast<double>(exact) != middle) continue;  // only below bf16's smallest halves
      const std::uint32_t even = code % 2 == 0 ? code : code + 1;
      const float below = std::nextafterf(exact, 0.0f);
      const float above = std::nextafterf(exact, std::numeric_limits<float>::infinity());
      wrong += format.encode(exact) == even ? 0 : 1;
      wrong += format.encode(below) == code ? 0 : 1;
      wrong += format.encode(above) == code + 1 ? 0 : 1;
      wrong += format.encode(-exact) == (even | 0x8000u) ? 0 : 1;
      wrong += format.encode(-below) == (code | 0x8000u) ? 0 : 1;
      wrong += format.encode(-above) == ((code + 1) | 0x8000u) ? 0 : 1;
    }
    CHECK(wrong == 0);
    CHECK(format.encode(std::numeric_limits<float>::max()) == format.infinity_code());
    CHECK(format.encode(std::numeric_limits<float>::denorm_min()) == 0);
  }
}

TEST_CASE("doubles_are_rounded_once_even_a_hair_beside_a_tie") {
  for (const HalfFormat& format : formats) {
    CAPTURE(format.name);
    int wrong = 0;
    for (std::uint32_t code = 0; code < format.infinity_code(); ++code) {
      const double middle = 0.5 * (format.value(code) + format.value(code + 1));
      wrong += from_double(format, middle) == (code % 2 == 0 ? code : code + 1) ? 0 : 1;
      wrong += from_double(format, std::nextafter(middle, 0.0)) == code ? 0 : 1;
      wrong += from_double(format, std::nextafter(middle, 1e300)) == code + 1 ? 0 : 1;
      wrong += from_double(format, -std::nextafter(middle, 1e300)) == ((code + 1) | 0x8000u) ? 0 : 1;
    }
    CHECK(wrong == 0);
    CHECK(from_double(format, 1e300) == format.infinity_code());
    CHECK(from_double(format, -1e300) == (format.infinity_code() | 0x8000u));
    CHECK(from_double(format, -1e-300) == 0x8000u);
  }
}

TEST_CASE("known_codes_of_f16_and_bf16") {
  CHECK(f16_from_float(1.0f) == 0x3c00);
  CHECK(f16_from_float(-2.0f) == 0xc000);
  CHECK(f16_from_float(65504.0f) == 0x7bff);
  CHECK(f16_from_float(65519.0f) == 0x7bff);
  CHECK(f16_from_float(65520.0f) == 0x7c00);
  CHECK(f16_from_float(0x1p-24f) == 0x0001);
  CHECK(f16_from_float(0x1p-25f) == 0x0000);
  CHECK(bf16_from_float(1.0f) == 0x3f80);
  CHECK(bf16_from_float(3.14159274f) == 0x4049);
  CHECK(bf16_from_float(1.00390625f) == 0x3f80);  // a tie, down to even
  CHECK(bf16_from_float(1.01171875f) == 0x3f82);  // a tie, up to even
}

TEST_CASE("convert_floats_handles_every_pair_and_refuses_integers") {
  const std::vector<double> values = {0.0, -0.0, 1.5, -2.25, 1024.0, -0.0078125};  // exact in every format
  const DType types[] = {DType::f64, DType::f32, DType::bf16, DType::f16};
  for (const DType from : types)
    for (const DType to : types) {
      CAPTURE(std::string(to_text(from)));
      CAPTURE(std::string(to_text(to)));
      std::vector<std::byte> source(values.size() * size_of(from));
      std::vector<std::byte> destination(values.size() * size_of(to));
      std::vector<double> back(values.size());
      convert_floats(DType::f64, values.data(), from, source.data(), values.size());
      convert_floats(from, source.data(), to, destination.data(), values.size());
      convert_floats(to, destination.data(), DType::f64, back.data(), values.size());
      CHECK(std::memcmp(back.data(), values.data(), values.size() * sizeof(double)) == 0);
    }
  const double third = 1.0 / 3.0;
  float narrow = 0;
  convert_floats(DType::f64, &third, DType::f32, &narrow, 1);
  CHECK(narrow == 1.0f / 3.0f);
  CHECK_THROWS_AS(convert_floats(DType::i32, &narrow, DType::f32, &narrow, 1), BugError);
  CHECK_THROWS_AS(convert_floats(DType::f32, &narrow, DType::u16, &narrow, 1), BugError);
}

TEST_CASE("types_have_the_sizes_and_names_of_safetensors") {
  struct Row {
    DType dtype;
    std::size_t bytes;
    const char* name;
    bool floating;
  };
  const Row rows[] = {{DType::f64, 8, "F64", true},  {DType::f32, 4, "F32", true},  {DType::bf16, 2, "BF16", true},
                      {DType::f16, 2, "F16", true},  {DType::i64, 8, "I64", false}, {DType::i32, 4, "I32", false},
                      {DType::u16, 2, "U16", false}, {DType::u8, 1, "U8", false}};
  for (const Row& row : rows) {
    CAPTURE(row.name);
    CHECK(size_of(row.dtype) == row.bytes);
    CHECK(to_text(row.dtype) == row.name);
    CHECK(parse_dtype(row.name) == row.dtype);
    CHECK(is_floating(row.dtype) == row.floating);
  }
  CHECK_FALSE(parse_dtype("f32").has_value());
  CHECK_FALSE(parse_dtype("F8").has_value());
  CHECK_FALSE(parse_dtype("").has_value());
  CHECK_THROWS_AS(size_of(static_cast<DType>(200)), BugError);
}
