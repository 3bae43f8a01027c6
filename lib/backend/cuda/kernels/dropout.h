// What dropout keeps (DropoutMask): words of Philox 4x32-10 (Salmon et al. 2011), made where they are compared.
// Read behind cuda_language.h.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/launching.h"
#include "backend/operations.h"

namespace scaletrain::cuda {

// A DropoutMask as kernels have it.
struct DroppedBy {
  std::uint32_t key_low, key_high;
  std::uint32_t threshold;
  float factor;
  const std::int64_t* samples;
};

inline DroppedBy dropped_by(const DropoutMask& mask) {
  if (!mask) return {};
  return {mask.key.low, mask.key.high, mask.threshold(), static_cast<float>(mask.factor()),
          address<std::int64_t>(mask.samples)};
}

// One block.
struct DropoutWords {
  std::uint32_t a, b, c, d;
  __device__ std::uint32_t at(int index) const { return index < 2 ? index == 0 ? a : b : index == 2 ? c : d; }
};
__device__ inline DropoutWords dropout_words(const DroppedBy& by, std::int64_t sample, std::int64_t block) {
  std::uint32_t key_low = by.key_low;
  std::uint32_t key_high = by.key_high;
  DropoutWords words = {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                        static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(sample >> 32)};
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p = std::uint64_t{0xD2511F53} * words.a;
    const std::uint64_t q = std::uint64_t{0xCD9E8D57} * words.c;
    words = {static_cast<std::uint32_t>(q >> 32) ^ words.b ^ key_low, static_cast<std::uint32_t>(q),
             static_cast<std::uint32_t>(p >> 32) ^ words.d ^ key_high, static_cast<std::uint32_t>(p)};
    key_low += 0x9E3779B9U;
    key_high += 0xBB67AE85U;
  }
  return words;
}

// Which of four elements are kept, a bit each.
__device__ inline unsigned kept_bits(const DroppedBy& by, const DropoutWords& words) {
  return (words.a >= by.threshold ? 1U : 0U) | (words.b >= by.threshold ? 2U : 0U) |
         (words.c >= by.threshold ? 4U : 0U) | (words.d >= by.threshold ? 8U : 0U);
}

}  // namespace scaletrain::cuda
