// Element types, their sizes and names, and conversions between the floating-point ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "tensor/halves.h"

namespace scaletrain {

enum class DType : std::uint8_t { f64, f32, bf16, f16, i64, i32, u16, u8 };

std::size_t size_of(DType dtype);
// The name in safetensors files: "F64", "F32", "BF16", "F16", "I64", "I32", "U16", "U8".
std::string_view to_text(DType dtype);
std::optional<DType> parse_dtype(std::string_view name);
bool is_floating(DType dtype);
// What sums over values of a floating-point type are kept in, and so masters, gradients and statistics: f32, or f64 for
// f64.
DType accumulator_type(DType dtype);

// Round to nearest even; NaN stays NaN, overflow becomes infinity, subnormals are kept.
std::uint16_t bf16_from_float(float value);
float float_from_bf16(std::uint16_t bits);
std::uint16_t f16_from_float(float value);
float float_from_f16(std::uint16_t bits);

// Converts count elements between any two floating-point types; source and destination must not overlap.
void convert_floats(DType from, const void* source, DType to, void* destination, std::size_t count);

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<double>() {
  return DType::f64;
}
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<Bf16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<F16>() {
  return DType::f16;
}
template <>
constexpr DType dtype_of<std::int64_t>() {
  return DType::i64;
}
template <>
constexpr DType dtype_of<std::int32_t>() {
  return DType::i32;
}
template <>
constexpr DType dtype_of<std::uint16_t>() {
  return DType::u16;
}
template <>
constexpr DType dtype_of<std::uint8_t>() {
  return DType::u8;
}

}  // namespace scaletrain
