// How GGUF (the file format of ggml and llama.cpp) stores numbers: plain ones, or blocks of 32 that share a scale.
//
//   q8_0  scale (f16), 32 x int8:            x = scale * q,        8.5 bits each
//   q4_0  scale (f16), 16 bytes of 2 x 4 bit: x = scale * (q - 8), 4.5 bits each; byte j holds q of j and of j + 16
//
// The scale of q8_0 is the largest magnitude / 127; that of q4_0 is the value of the largest magnitude / -8, so that it
// is met exactly by the one code that has no counterpart. Codes are the nearest to the scale as it is stored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace scaletrain {

// By the format's own numbers.
enum class GgufType : std::uint32_t { f32 = 0, f16 = 1, q4_0 = 2, q8_0 = 8, bf16 = 30 };

inline constexpr std::int64_t kGgufBlock = 32;

// Whether rows of so many elements can be stored: whole blocks.
bool fits_gguf_blocks(GgufType type, std::int64_t row_elements);
std::uint64_t gguf_bytes(GgufType type, std::int64_t elements);

// Finite numbers, in whole blocks; `out` has gguf_bytes(). A number or scale beyond what the type holds becomes
// infinite: find_unholdable() says so before.
void encode_gguf(GgufType type, std::span<const float> values, std::span<std::byte> out);
void decode_gguf(GgufType type, std::span<const std::byte> bytes, std::span<float> out);

// The place of the first number that is not finite, or that the type cannot hold; -1: there is none.
std::int64_t find_unholdable(GgufType type, std::span<const float> values);

}  // namespace scaletrain
