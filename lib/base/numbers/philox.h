// Counter-based random numbers: Philox 4x32 with 10 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2,
// 3", 2011). A value is a pure function of (key, counter), so any rank computes any element of any tensor without a
// state. Everything here gives the same bits on every processor: integer arithmetic, and floating point that uses only
// correctly rounded operations in a fixed order (no library transcendental, no contraction).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace scaletrain {

struct PhiloxKey {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  bool operator==(const PhiloxKey&) const = default;
};

// One block of four 32-bit words for a 128-bit counter.
std::array<std::uint32_t, 4> philox(PhiloxKey key, std::array<std::uint32_t, 4> counter);

// The key for (seed, name): the name is hashed, so that two tensors never share a stream.
PhiloxKey philox_key(std::uint64_t seed, std::string_view name);

// 64 random bits for (key, index): the plain use where one number is wanted. Uses other counters than the fills below,
// so both may share a key.
std::uint64_t philox_u64(PhiloxKey key, std::uint64_t index);

// A double in [0, 1) with 53 random bits.
double philox_uniform(PhiloxKey key, std::uint64_t index);

// out[i] = mean + deviation * z(first + i), z standard normal: element e is word e % 4 of block e / 4, mapped by the
// inverse of the normal distribution function (Wichura, algorithm AS 241), so a range may start anywhere.
void fill_normal(PhiloxKey key, std::uint64_t first, float mean, float deviation, std::span<float> out);

// out[i] uniform in [low, high), element addressing as fill_normal.
void fill_uniform(PhiloxKey key, std::uint64_t first, float low, float high, std::span<float> out);

// The words of consecutive blocks: out[4i + j] is word j of the block with the counter {block + i, stream}, 64 bits
// each, low words first. Other counters than those of the draws above wherever the keys differ.
void fill_words(PhiloxKey key, std::uint64_t block, std::uint64_t stream, std::span<std::uint32_t> out);

// The inverse of the standard normal distribution function, 0 < p < 1; relative error about 1e-15.
double normal_quantile(double p);

}  // namespace scaletrain
