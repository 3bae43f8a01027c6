#include "checkpoint/gguf/gguf_blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "tensor/dtype.h"

namespace scaletrain {

namespace {

constexpr std::size_t block_elements = static_cast<std::size_t>(kGgufBlock);
constexpr std::size_t scale_bytes = 2;
constexpr std::size_t q8_bytes = scale_bytes + block_elements;
constexpr std::size_t q4_bytes = scale_bytes + block_elements / 2;

// Stores the scale and returns it as it was stored.
float store_scale(float scale, std::byte* out) {
  convert_floats(DType::f32, &scale, DType::f16, out, 1);
  float stored = 0.0F;
  convert_floats(DType::f16, out, DType::f32, &stored, 1);
  return stored;
}

float load_scale(const std::byte* bytes) {
  float scale = 0.0F;
  convert_floats(DType::f16, bytes, DType::f32, &scale, 1);
  return scale;
}

float inverse(float scale) {
  return scale == 0.0F ? 0.0F : 1.0F / scale;
}

// The value of the largest magnitude.
float extreme(const float* values) {
  return *std::max_element(values, values + block_elements,
                           [](float a, float b) { return std::fabs(a) < std::fabs(b); });
}

void encode_q8(const float* values, std::byte* out) {
  const float factor = inverse(store_scale(std::fabs(extreme(values)) / 127.0F, out));
  std::array<std::int8_t, block_elements> codes;
  for (std::size_t i = 0; i < block_elements; ++i)
    codes[i] = static_cast<std::int8_t>(std::clamp(std::round(values[i] * factor), -127.0F, 127.0F));
  std::memcpy(out + scale_bytes, codes.data(), codes.size());
}

void encode_q4(const float* values, std::byte* out) {
  const float factor = inverse(store_scale(extreme(values) / -8.0F, out));
  const auto code = [&](std::size_t i) {
    return static_cast<unsigned>(std::clamp(std::floor(values[i] * factor + 8.5F), 0.0F, 15.0F));
  };
  for (std::size_t i = 0; i < block_elements / 2; ++i)
    out[scale_bytes + i] = static_cast<std::byte>(code(i) | code(i + block_elements / 2) << 4);
}

void decode_q8(const std::byte* bytes, float* out) {
  const float scale = load_scale(bytes);
  for (std::size_t i = 0; i < block_elements; ++i)
    out[i] = scale * static_cast<float>(static_cast<std::int8_t>(bytes[scale_bytes + i]));
}

void decode_q4(const std::byte* bytes, float* out) {
  const float scale = load_scale(bytes);
  for (std::size_t i = 0; i < block_elements / 2; ++i) {
    const auto both = static_cast<int>(bytes[scale_bytes + i]);
    out[i] = scale * static_cast<float>((both & 15) - 8);
    out[i + block_elements / 2] = scale * static_cast<float>((both >> 4) - 8);
  }
}

DType plain_type(GgufType type) {
  return type == GgufType::f16 ? DType::f16 : type == GgufType::bf16 ? DType::bf16 : DType::f32;
}

bool is_of_blocks(GgufType type) {
  return type == GgufType::q4_0 || type == GgufType::q8_0;
}

std::size_t block_bytes(GgufType type) {
  return type == GgufType::q8_0 ? q8_bytes : q4_bytes;
}

// The smallest magnitude that cannot be held.
float first_beyond(GgufType type) {
  constexpr float of_half = 65520.0F;
  switch (type) {
    case GgufType::f16:
      return of_half;
    case GgufType::bf16:
      return 0x1.ffp127F;
    case GgufType::q8_0:
      return of_half * 127.0F;
    case GgufType::q4_0:
      return of_half * 8.0F;
    case GgufType::f32:
      break;
  }
  return std::numeric_limits<float>::infinity();
}

}  // namespace

bool fits_gguf_blocks(GgufType type, std::int64_t row_elements) {
  return !is_of_blocks(type) || row_elements % kGgufBlock == 0;
}

std::uint64_t gguf_bytes(GgufType type, std::int64_t elements) {
  const auto count = static_cast<std::uint64_t>(elements);
  if (!is_of_blocks(type)) return count * size_of(plain_type(type));
  SCALETRAIN_CHECK(fits_gguf_blocks(type, elements));
  return count / block_elements * block_bytes(type);
}

void encode_gguf(GgufType type, std::span<const float> values, std::span<std::byte> out) {
  SCALETRAIN_CHECK_EQ(out.size(), gguf_bytes(type, std::ssize(values)));
  if (!is_of_blocks(type))
    return convert_floats(DType::f32, values.data(), plain_type(type), out.data(), values.size());
  std::byte* to = out.data();
  for (std::size_t i = 0; i < values.size(); i += block_elements, to += block_bytes(type))
    (type == GgufType::q8_0 ? encode_q8 : encode_q4)(values.data() + i, to);
}

void decode_gguf(GgufType type, std::span<const std::byte> bytes, std::span<float> out) {
  SCALETRAIN_CHECK_EQ(bytes.size(), gguf_bytes(type, std::ssize(out)));
  if (!is_of_blocks(type)) return convert_floats(plain_type(type), bytes.data(), DType::f32, out.data(), out.size());
  const std::byte* from = bytes.data();
  for (std::size_t i = 0; i < out.size(); i += block_elements, from += block_bytes(type))
    (type == GgufType::q8_0 ? decode_q8 : decode_q4)(from, out.data() + i);
}

std::int64_t find_unholdable(GgufType type, std::span<const float> values) {
  const float limit = first_beyond(type);
  const auto bad = std::find_if(values.begin(), values.end(), [&](float value) { return !(std::fabs(value) < limit); });
  return bad == values.end() ? -1 : bad - values.begin();
}

}  // namespace scaletrain
