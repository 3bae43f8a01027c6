#include <bit>

#include "base/error.h"
#include "data/order/sampler.h"

namespace scaletrain {
namespace {

// Luby and Rackoff need four for a random permutation's looks; two more because the halves are small.
constexpr int kRounds = 6;

std::uint64_t low_bits(int count) {
  return (std::uint64_t{1} << count) - 1;
}

}  // namespace

KeyedPermutation::KeyedPermutation(PhiloxKey key, std::int64_t size) : key_(key), size_(size) {
  SCALETRAIN_CHECK(size > 0);
  const int bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(size - 1)));
  left_bits_ = bits / 2;
  right_bits_ = bits - left_bits_;
}

// One pass through the network. Each round changes one half by a function of the other, so the same rounds in the
// opposite order undo it.
std::uint64_t KeyedPermutation::walk(std::uint64_t value, bool backward) const {
  std::uint64_t left = value >> right_bits_;
  std::uint64_t right = value & low_bits(right_bits_);
  for (int i = 0; i < kRounds; ++i) {
    const int round = backward ? kRounds - 1 - i : i;
    const std::uint64_t other = round % 2 == 0 ? left : right;
    const auto words = philox(key_, {static_cast<std::uint32_t>(other), static_cast<std::uint32_t>(other >> 32),
                                     static_cast<std::uint32_t>(round), 0x50455255u});
    if (round % 2 == 0) {
      right ^= words[0] & low_bits(right_bits_);
    } else {
      left ^= words[0] & low_bits(left_bits_);
    }
  }
  return left << right_bits_ | right;
}

std::int64_t KeyedPermutation::forward(std::int64_t index) const {
  SCALETRAIN_CHECK(index >= 0 && index < size_);
  auto value = static_cast<std::uint64_t>(index);
  do {
    value = walk(value, false);
  } while (value >= static_cast<std::uint64_t>(size_));
  return static_cast<std::int64_t>(value);
}

std::int64_t KeyedPermutation::inverse(std::int64_t index) const {
  SCALETRAIN_CHECK(index >= 0 && index < size_);
  auto value = static_cast<std::uint64_t>(index);
  do {
    value = walk(value, true);
  } while (value >= static_cast<std::uint64_t>(size_));
  return static_cast<std::int64_t>(value);
}

}  // namespace scaletrain
