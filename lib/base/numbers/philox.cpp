#include "base/numbers/philox.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

#include "base/error.h"
#include "base/hash.h"

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

// Natural logarithm of a positive finite number from + - * / alone. x = m 2^e with m in [sqrt(1/2), sqrt(2)), and
// log m = 2 atanh(s), s = (m - 1)/(m + 1), |s| < 0.172: the series' term beyond the last one kept is below 2^-54.
double portable_log(double x) {
  double shift = 0.0;
  if (x < 0x1p-1022) {
    x *= 0x1p54;
    shift = -54.0;
  }
  constexpr std::uint64_t half_root_bits = 0x3FE6A09E667F3BCDull;  // sqrt(1/2)
  const auto bits = std::bit_cast<std::uint64_t>(x) - half_root_bits;
  const auto exponent = static_cast<std::int64_t>(bits) >> 52;
  const auto mantissa = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFFull) + half_root_bits);
  const double e = static_cast<double>(exponent) + shift;
  const double s = (mantissa - 1.0) / (mantissa + 1.0);
  const double w = s * s;
  // Two halves, in even and odd powers of w^2, so that the processor works on both at once.
  const double v = w * w;
  const double even = ((((1.0 / 23 * v + 1.0 / 19) * v + 1.0 / 15) * v + 1.0 / 11) * v + 1.0 / 7) * v + 1.0 / 3;
  const double odd = (((1.0 / 21 * v + 1.0 / 17) * v + 1.0 / 13) * v + 1.0 / 9) * v + 1.0 / 5;
  const double series = even + w * odd;
  constexpr double ln2_high = 0x1.62e42fefa38p-1;  // 11 zero bits at its end: e * ln2_high is exact
  constexpr double ln2_low = 0x1.ef35793c7673p-45;
  const double twice_s = s + s;
  return e * ln2_high + (twice_s + (twice_s * w * series + e * ln2_low));
}

// Written out, because a loop in here keeps the loop around it from being vectorised.
inline double horner(const std::array<double, 8>& c, double x) {
  return ((((((c[7] * x + c[6]) * x + c[5]) * x + c[4]) * x + c[3]) * x + c[2]) * x + c[1]) * x + c[0];
}

// Coefficients of PPND16: M. J. Wichura, "Algorithm AS 241: the percentage points of the normal distribution",
// Applied Statistics 37 (1988). Constant term first.
constexpr std::array<double, 8> central_above = {
    3.3871328727963666080e0,  1.3314166789178437745e+2, 1.9715909503065514427e+3, 1.3731693765509461125e+4,
    4.5921953931549871457e+4, 6.7265770927008700853e+4, 3.3430575583588128105e+4, 2.5090809287301226727e+3};
constexpr std::array<double, 8> central_below = {1.0,
                                                 4.2313330701600911252e+1,
                                                 6.8718700749205790830e+2,
                                                 5.3941960214247511077e+3,
                                                 2.1213794301586595867e+4,
                                                 3.9307895800092710610e+4,
                                                 2.8729085735721942674e+4,
                                                 5.2264952788528545610e+3};
constexpr std::array<double, 8> middle_above = {
    1.42343711074968357734e0, 4.63033784615654529590e0,  5.76949722146069140550e0,  3.64784832476320460504e0,
    1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4};
constexpr std::array<double, 8> middle_below = {1.0,
                                                2.05319162663775882187e0,
                                                1.67638483018380384940e0,
                                                6.89767334985100004550e-1,
                                                1.48103976427480074590e-1,
                                                1.51986665636164571966e-2,
                                                5.47593808499534494600e-4,
                                                1.05075007164441684324e-9};
constexpr std::array<double, 8> far_above = {
    6.65790464350110377720e0,  5.46378491116411436990e0,  1.78482653991729133580e0,  2.96560571828504891230e-1,
    2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7};
constexpr std::array<double, 8> far_below = {1.0,
                                             5.99832206555887937690e-1,
                                             1.36929880922735805310e-1,
                                             1.48753612908506148525e-2,
                                             7.86869131145613259100e-4,
                                             1.84631831751005468180e-5,
                                             1.42151175831644588870e-7,
                                             2.04426310338993978564e-15};

constexpr double central_bound = 0.425;
constexpr double central_radius = 0.180625;  // central_bound^2

// q = p - 1/2, |q| <= central_bound.
inline double central_quantile(double q) {
  const double r = central_radius - q * q;
  return q * horner(central_above, r) / horner(central_below, r);
}

// The magnitude of the quantile at the tail probability min(p, 1 - p).
double tail_quantile(double tail) {
  const double r = std::sqrt(-portable_log(tail));
  if (r <= 5.0) return horner(middle_above, r - 1.6) / horner(middle_below, r - 1.6);
  return horner(far_above, r - 5.0) / horner(far_below, r - 5.0);
}

// Calls use(i, count, words) for consecutive tiles: words[0, count) belong to elements first + i, first + i + 1, ...;
// words[count, tile) may be read and mean nothing.
constexpr std::size_t tile = 64;
template <class Use>
void for_each_tile(PhiloxKey key, std::uint64_t first, std::size_t size, Use use) {
  std::array<std::uint32_t, tile + 4> words{};
  for (std::size_t i = 0; i < size; i += tile) {
    const std::size_t count = std::min(tile, size - i);
    const std::uint64_t element = first + i;
    const std::uint64_t block = element / 4;
    const std::size_t skip = element % 4;
    for (std::size_t b = 0; b * 4 < skip + count; ++b) {
      const auto four = philox_block(key, {low32(block + b), high32(block + b), 0, 0});
      std::copy(four.begin(), four.end(), words.begin() + static_cast<std::ptrdiff_t>(4 * b));
    }
    use(i, count, words.data() + skip);
  }
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
  const double offset = mean;
  const double scale = deviation;
  for_each_tile(key, first, out.size(), [&](std::size_t start, std::size_t count, const std::uint32_t* words) {
    std::array<double, tile> q;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled below
    std::array<double, tile> z;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled below
    // p = (word + 1/2) / 2^32 lies strictly between 0 and 1, and p - 1/2 is exact.
    // These two loops always run over a whole tile: their fixed length lets the compiler vectorise them.
    for (std::size_t i = 0; i < tile; ++i) q[i] = (static_cast<double>(words[i]) + 0.5) * 0x1p-32 - 0.5;
    // Every element takes the central formula first and 15 % are then redone, listed without a branch: a processor
    // cannot predict which, and each wrong guess would cost more than the formula.
    for (std::size_t i = 0; i < tile; ++i) z[i] = central_quantile(q[i]);
    std::array<std::uint8_t, tile> tails;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled below
    std::size_t num_tails = 0;
    for (std::size_t i = 0; i < count; ++i) {
      tails[num_tails] = static_cast<std::uint8_t>(i);
      num_tails += std::abs(q[i]) > central_bound ? 1 : 0;
    }
    for (std::size_t t = 0; t < num_tails; ++t) {
      const double at = q[tails[t]];
      z[tails[t]] = std::copysign(tail_quantile(0.5 - std::abs(at)), at);
    }
    for (std::size_t i = 0; i < count; ++i) out[start + i] = static_cast<float>(offset + scale * z[i]);
  });
}

void fill_uniform(PhiloxKey key, std::uint64_t first, float low, float high, std::span<float> out) {
  SCALETRAIN_CHECK_LE(low, high);
  const double width = static_cast<double>(high) - static_cast<double>(low);
  // Rounding to float may reach the open end of the interval; it is brought back to the last value inside.
  const float last = std::max(low, std::nextafter(high, low));
  for_each_tile(key, first, out.size(), [&](std::size_t start, std::size_t count, const std::uint32_t* words) {
    for (std::size_t i = 0; i < count; ++i) {
      const double value = static_cast<double>(low) + width * (static_cast<double>(words[i]) * 0x1p-32);
      out[start + i] = std::min(static_cast<float>(value), last);
    }
  });
}

double normal_quantile(double p) {
  SCALETRAIN_CHECK(p > 0.0 && p < 1.0);
  const double q = p - 0.5;
  if (q < -central_bound) return -tail_quantile(p);
  if (q > central_bound) return tail_quantile(1.0 - p);
  return central_quantile(q);
}

}  // namespace scaletrain
