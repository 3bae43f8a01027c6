#include "tensor/dtype.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace scaletrain {

namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  std::size_t bytes;
  bool floating;
};

constexpr std::array<DTypeRow, 8> dtype_rows = {{
    {DType::f64, "F64", 8, true},
    {DType::f32, "F32", 4, true},
    {DType::bf16, "BF16", 2, true},
    {DType::f16, "F16", 2, true},
    {DType::i64, "I64", 8, false},
    {DType::i32, "I32", 4, false},
    {DType::u16, "U16", 2, false},
    {DType::u8, "U8", 1, false},
}};

const DTypeRow& row_of(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  SCALETRAIN_CHECK(index < dtype_rows.size() && dtype_rows[index].dtype == dtype);
  return dtype_rows[index];
}

double load_element(DType dtype, const std::byte* source) {
  switch (dtype) {
    case DType::f64: {
      double value = 0;
      std::memcpy(&value, source, sizeof value);
      return value;
    }
    case DType::f32: {
      float value = 0;
      std::memcpy(&value, source, sizeof value);
      return value;
    }
    default: {
      std::uint16_t bits = 0;
      std::memcpy(&bits, source, sizeof bits);
      return dtype == DType::bf16 ? float_from_bf16(bits) : float_from_f16(bits);
    }
  }
}

// Rounds to float so that a second rounding to 16 bits cannot move the result across a tie: an inexact value keeps an
// odd last bit ("round to odd").
float float_round_to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  if (!std::isfinite(nearest) || static_cast<double>(nearest) == value) return nearest;
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  if ((bits & 1u) != 0) return nearest;
  const bool away = std::fabs(static_cast<double>(nearest)) > std::fabs(value);
  bits = away ? bits - 1 : bits + 1;
  return std::bit_cast<float>(bits);
}

void store_element(DType dtype, double value, std::byte* destination) {
  switch (dtype) {
    case DType::f64:
      std::memcpy(destination, &value, sizeof value);
      return;
    case DType::f32: {
      const auto narrow = static_cast<float>(value);
      std::memcpy(destination, &narrow, sizeof narrow);
      return;
    }
    default: {
      const float rounded = float_round_to_odd(value);
      const std::uint16_t bits = dtype == DType::bf16 ? bf16_from_float(rounded) : f16_from_float(rounded);
      std::memcpy(destination, &bits, sizeof bits);
    }
  }
}

}  // namespace

std::size_t size_of(DType dtype) {
  return row_of(dtype).bytes;
}
std::string_view to_text(DType dtype) {
  return row_of(dtype).name;
}
bool is_floating(DType dtype) {
  return row_of(dtype).floating;
}

DType accumulator_type(DType dtype) {
  return dtype == DType::f64 ? DType::f64 : DType::f32;
}

std::optional<DType> parse_dtype(std::string_view name) {
  for (const DTypeRow& row : dtype_rows)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

std::uint16_t bf16_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);  // quiet, payload's upper bits kept
  const std::uint32_t rounding = 0x7fffu + ((bits >> 16) & 1u);
  return static_cast<std::uint16_t>((bits + rounding) >> 16);
}

float float_from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t f16_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
  if (magnitude >= 0x47800000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // 2^16 and above
  if (magnitude < 0x38800000u) {                                                    // below 2^-14: a multiple of 2^-24
    const float scaled = std::bit_cast<float>(magnitude) * 16777216.0f;             // exact
    const float whole = std::nearbyint(scaled);
    return static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(whole));
  }
  const std::uint32_t rounding = 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((magnitude + rounding - (112u << 23)) >> 13));
}

float float_from_f16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  const std::uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (fraction << 13));
}

Bf16::Bf16(double value) : bits(bf16_from_float(float_round_to_odd(value))) {}
Bf16::operator double() const {
  return static_cast<double>(float_from_bf16(bits));
}

F16::F16(double value) : bits(f16_from_float(float_round_to_odd(value))) {}
F16::operator double() const {
  return static_cast<double>(float_from_f16(bits));
}

void convert_floats(DType from, const void* source, DType to, void* destination, std::size_t count) {
  SCALETRAIN_CHECK(is_floating(from) && is_floating(to));
  if (from == to) {
    if (count > 0) std::memcpy(destination, source, count * size_of(from));
    return;
  }
  const auto* in = static_cast<const std::byte*>(source);
  auto* out = static_cast<std::byte*>(destination);
  const std::size_t in_step = size_of(from);
  const std::size_t out_step = size_of(to);
  for (std::size_t i = 0; i < count; ++i) store_element(to, load_element(from, in + i * in_step), out + i * out_step);
}

}  // namespace scaletrain
