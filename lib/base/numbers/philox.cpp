#include "base/numbers/philox.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/error.h"
#include "base/hash.h"
#include "base/numbers/philox_fill.h"

namespace scaletrain {
namespace {

constexpr std::uint32_t low32(std::uint64_t x) {
  return static_cast<std::uint32_t>(x);
}
constexpr std::uint32_t high32(std::uint64_t x) {
  return static_cast<std::uint32_t>(x >> 32);
}

// The third counter word separates single draws from the elements of a fill.
constexpr std::uint32_t draw_domain = 1;

// Multipliers of the two products and Weyl increments of the key, from the paper.
constexpr std::uint64_t multiplier_0 = 0xD2511F53u;
constexpr std::uint64_t multiplier_1 = 0xCD9E8D57u;
constexpr std::uint32_t weyl_0 = 0x9E3779B9u;
constexpr std::uint32_t weyl_1 = 0xBB67AE85u;

inline std::array<std::uint32_t, 4> philox_block(PhiloxKey key, std::array<std::uint32_t, 4> c) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = multiplier_0 * c[0];
    const std::uint64_t p1 = multiplier_1 * c[2];
    c = {high32(p1) ^ c[1] ^ key.low, low32(p1), high32(p0) ^ c[3] ^ key.high, low32(p0)};
    key.low += weyl_0;
    key.high += weyl_1;
  }
  return c;
}

#include "base/numbers/normal_quantile.inc"

// The magnitude of the quantile at the tail probability min(p, 1 - p).
double tail_quantile(double tail) {
  const bool is_subnormal = tail < 0x1p-1022;
  const double log = is_subnormal ? portable_log(tail * 0x1p54, -54.0) : portable_log(tail, 0.0);
  const double r = std::sqrt(-log);
  return r <= middle_bound ? middle_quantile(r) : far_quantile(r);
}

const PhiloxFill& best_fill() {
  static const PhiloxFill* const best = [] {
    const PhiloxFills fills = philox_fills();
    return *std::find_if(fills.begin, fills.begin + fills.count,
                         [](const PhiloxFill* fill) { return fill->supported(); });
  }();
  return *best;
}

PhiloxFill::Range range_of(PhiloxKey key, std::uint64_t first, std::span<float> out) {
  return {.key_low = key.low, .key_high = key.high, .first = first, .out = out.data(), .count = out.size()};
}

}  // namespace

std::array<std::uint32_t, 4> philox(PhiloxKey key, std::array<std::uint32_t, 4> counter) {
  return philox_block(key, counter);
}

PhiloxKey philox_key(std::uint64_t seed, std::string_view name) {
  const std::uint64_t hash = hash_text(name, seed);
  return {low32(hash), high32(hash)};
}

std::uint64_t philox_u64(PhiloxKey key, std::uint64_t index) {
  const auto words = philox_block(key, {low32(index), high32(index), draw_domain, 0});
  return std::uint64_t{words[1]} << 32 | words[0];
}

double philox_uniform(PhiloxKey key, std::uint64_t index) {
  return static_cast<double>(philox_u64(key, index) >> 11) * 0x1p-53;
}

void fill_normal(PhiloxKey key, std::uint64_t first, float mean, float deviation, std::span<float> out) {
  best_fill().normal(range_of(key, first, out), mean, deviation);
}

void fill_uniform(PhiloxKey key, std::uint64_t first, float low, float high, std::span<float> out) {
  SCALETRAIN_CHECK_LE(low, high);
  // Rounding to float may reach the open end of the interval; it is brought back to the last value inside.
  best_fill().uniform(range_of(key, first, out), {.low = low,
                                                  .width = static_cast<double>(high) - static_cast<double>(low),
                                                  .last = std::max(low, std::nextafter(high, low))});
}

void fill_words(PhiloxKey key, std::uint64_t block, std::uint64_t stream, std::span<std::uint32_t> out) {
  best_fill().words({.key_low = key.low,
                     .key_high = key.high,
                     .block = block,
                     .stream = stream,
                     .out = out.data(),
                     .count = out.size()});
}

double normal_quantile(double p) {
  SCALETRAIN_CHECK(p > 0.0 && p < 1.0);
  const double q = p - 0.5;
  if (q < -central_bound) return -tail_quantile(p);
  if (q > central_bound) return tail_quantile(1.0 - p);
  return central_quantile(q);
}

}  // namespace scaletrain
