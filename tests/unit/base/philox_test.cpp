#include "base/numbers/philox.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/numbers/philox_fill.h"
#include "support/near.h"
#include "support/philox_below.h"

using namespace scaletrain;

namespace {

using Words = std::array<std::uint32_t, 4>;

std::vector<float> normals(PhiloxKey key, std::uint64_t first, std::size_t count) {
  std::vector<float> out(count);
  fill_normal(key, first, 0.0f, 1.0f, out);
  return out;
}

std::string hash_of(std::span<const float> values) {
  return to_hex(hash_bytes(std::as_bytes(values)));
}

std::vector<const PhiloxFill*> supported_fills() {
  std::vector<const PhiloxFill*> supported;
  const PhiloxFills all = philox_fills();
  for (std::size_t i = 0; i < all.count; ++i)
    if (all.begin[i]->supported()) supported.push_back(all.begin[i]);
  return supported;
}

PhiloxFill::Range range_of(PhiloxKey key, std::uint64_t first, std::span<float> out) {
  return {.key_low = key.low, .key_high = key.high, .first = first, .out = out.data(), .count = out.size()};
}

double distribution(double z) {
  return 0.5 * std::erfc(-z / std::sqrt(2.0));
}

}  // namespace

// Vectors published with the authors' Random123 library (kat_vectors).
TEST_CASE("philox gives the published vectors") {
  CHECK(philox({0, 0}, {0, 0, 0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox({0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}) ==
        Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox({0xa4093822, 0x299f31d0}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

// Values from tables of the normal distribution, to all digits of a double.
TEST_CASE("normal_quantile gives known values") {
  CHECK(normal_quantile(0.5) == 0.0);
  CHECK(normal_quantile(0.75) == Near(0.6744897501960817).epsilon(4e-16));
  CHECK(normal_quantile(0.975) == Near(1.959963984540054).epsilon(4e-16));
  CHECK(normal_quantile(0.025) == Near(-1.959963984540054).epsilon(4e-16));
  CHECK(normal_quantile(0.999) == Near(3.090232306167813).epsilon(1e-15));
  CHECK(normal_quantile(1e-10) == Near(-6.361340902404056).epsilon(1e-15));
  CHECK(normal_quantile(1e-300) == Near(-37.0471).epsilon(1e-6));
  CHECK_THROWS_AS(normal_quantile(0.0), BugError);
  CHECK_THROWS_AS(normal_quantile(1.0), BugError);
  CHECK_THROWS_AS(normal_quantile(std::nan("")), BugError);
}

// z moves by dz when p moves by density(z) dz, so an error of 1e-15 in z is one of about z^2 1e-15 in p, relatively.
TEST_CASE("normal_quantile inverts the distribution function in every branch") {
  for (double p = 1e-300; p < 0.5; p *= 1.37) {
    const double z = normal_quantile(p);
    INFO("p = ", p);
    CHECK(distribution(z) == Near(p).epsilon(4e-15 * (1 + z * z)));
    if (p > 1e-14) CHECK(normal_quantile(1.0 - p) == Near(-z).epsilon(1e-15 / p + 1e-14));
  }
  // The smallest subnormal number; log of it is far from the table's range but must be right.
  CHECK(normal_quantile(0x1p-1074) == Near(-38.4674).epsilon(1e-4));
}

TEST_CASE("a range of normals may start anywhere") {
  const PhiloxKey key = philox_key(7, "layers.0.attention.query");
  const auto whole = normals(key, 0, 1000);
  for (const std::size_t start : {0u, 1u, 2u, 3u, 4u, 63u, 64u, 65u, 511u}) {
    for (const std::size_t count : {0u, 1u, 3u, 4u, 5u, 64u, 67u, 400u}) {
      const auto part = normals(key, start, count);
      CHECK(std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(start)));
    }
  }
}

TEST_CASE("elements beyond 2^34 have blocks of their own") {
  const PhiloxKey key{1, 2};
  const std::uint64_t far = (1ull << 34) + 8;  // its block number needs the counter's second word
  CHECK(normals(key, far, 4) != normals(key, 8, 4));
  const auto across = normals(key, far - 10, 20);
  CHECK(across[10] == normals(key, far, 1)[0]);
  std::array<float, 1> u{};
  fill_uniform(key, far, 0.0f, 1.0f, u);
  CHECK(u[0] == Near(philox(key, {2, 1, 0, 0})[0] * 0x1p-32).epsilon(1e-7));
}

TEST_CASE("normals follow the words they are made from") {
  const PhiloxKey key{123, 456};
  const auto z = normals(key, 0, 4000);
  for (std::size_t e = 0; e < z.size(); ++e) {
    const auto block = static_cast<std::uint32_t>(e / 4);
    const double p = (philox(key, {block, 0, 0, 0})[e % 4] + 0.5) / 4294967296.0;
    REQUIRE(z[e] == static_cast<float>(normal_quantile(p)));
  }
  std::vector<float> scaled(4000);
  fill_normal(key, 0, 1.5f, 0.25f, scaled);
  for (std::size_t e = 0; e < z.size(); ++e) REQUIRE(scaled[e] == Near(1.5 + 0.25 * z[e]).epsilon(1e-6));
}

// For n = 2^20 the moments' standard errors are 1/sqrt(n), sqrt(2/n), sqrt(15/n)... ; bounds are five of them.
TEST_CASE("normals have the moments of the normal distribution") {
  const std::size_t n = 1u << 20;
  const auto z = normals(philox_key(3, "moments"), 0, n);
  double first = 0, second = 0, third = 0, fourth = 0, neighbours = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double x = z[i];
    first += x;
    second += x * x;
    third += x * x * x;
    fourth += x * x * x * x;
    if (i > 0) neighbours += x * z[i - 1];
  }
  const double root = std::sqrt(static_cast<double>(n));
  CHECK(std::abs(first / n) < 5 / root);
  CHECK(std::abs(second / n - 1) < 5 * std::sqrt(2.0) / root);
  CHECK(std::abs(third / n) < 5 * std::sqrt(15.0) / root);
  CHECK(std::abs(fourth / n - 3) < 5 * std::sqrt(96.0) / root);
  CHECK(std::abs(neighbours / n) < 5 / root);
}

// Expected bits from an independent evaluation of AS 241 over the same words in Python, rounded to float.
TEST_CASE("normals have the same bits on every machine") {
  const auto z = normals({0, 0}, 0, 8);
  const std::array<std::uint32_t, 8> expected = {0xbe82fa50u, 0x3f96bb4fu, 0x3f2153b7u, 0x3e88fdebu,
                                                 0x3ff51846u, 0xbeb4ac05u, 0x3f01cc4fu, 0xbfe489aau};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &z[i], sizeof bits);
    CHECK(bits == expected[i]);
  }
  const auto many = normals(philox_key(1234, "tok_embeddings"), 5, 100000);
  CHECK(hash_of(many) == "d0bdb22f18ef242c");
}

// The hashes are of the values that were made one by one, before there were instruction sets to choose from.
TEST_CASE("every instruction set gives the bits that initial weights have always had") {
  const PhiloxKey key = philox_key(1234, "golden");
  const std::vector<const PhiloxFill*> fills = supported_fills();
  REQUIRE_FALSE(fills.empty());
  CHECK(std::string(fills.back()->name) == "portable");
  std::vector<float> values((1u << 20) + 7);
  for (const PhiloxFill* fill : fills) {
    CAPTURE(std::string(fill->name));
    fill->normal(range_of(key, 3, values), 0.25f, 0.02f);
    CHECK(hash_of(values) == "234f2ca0081ead72");
    fill->normal(range_of(key, (1ull << 34) - 999, values), 0.0, 1.0);  // across the counter's second word
    CHECK(hash_of(values) == "078be2c180a5115a");
    const float low = -0.3f;
    const float high = 0.7f;
    fill->uniform(
        range_of(key, 3, values),
        {.low = low, .width = static_cast<double>(high) - static_cast<double>(low), .last = std::nextafter(high, low)});
    CHECK(hash_of(values) == "0f2a675e54897640");
  }
}

TEST_CASE("every instruction set fills exactly its range, which may start and end anywhere") {
  const PhiloxKey key{77, 78};
  constexpr float untouched = 1e30f;
  for (const PhiloxFill* fill : supported_fills()) {
    CAPTURE(std::string(fill->name));
    std::vector<float> whole(1200);
    fill->normal(range_of(key, 0, whole), 0.0, 1.0);
    bool is_normal = true;
    for (std::size_t e = 0; e < whole.size(); ++e) {
      const double p = (philox(key, {static_cast<std::uint32_t>(e / 4), 0, 0, 0})[e % 4] + 0.5) / 4294967296.0;
      is_normal = is_normal && whole[e] == static_cast<float>(normal_quantile(p));
    }
    CHECK(is_normal);
    std::string wrong;
    for (std::size_t start = 0; start < 9; ++start)
      for (const std::size_t count : {0u, 1u, 2u, 3u, 5u, 31u, 32u, 64u, 251u, 252u, 253u, 256u, 257u, 259u, 700u}) {
        std::vector<float> part(count + 2, untouched);
        fill->normal(range_of(key, start, std::span(part).subspan(1, count)), 0.0, 1.0);
        const auto first = whole.begin() + static_cast<std::ptrdiff_t>(start);
        if (!std::equal(part.begin() + 1, part.end() - 1, first) || part.front() != untouched ||
            part.back() != untouched)
          wrong += std::to_string(start) + "+" + std::to_string(count) + " ";
      }
    CHECK(wrong == "");
  }
}

TEST_CASE("every instruction set gives the words of any blocks, and no more than is asked for") {
  const PhiloxKey key{0xa4093822, 0x299f31d0};
  constexpr std::uint64_t stream = 0x0370734413198a2e;
  std::vector<const PhiloxFill*> fills = supported_fills();
  for (const PhiloxFill* fill : fills) {
    CAPTURE(std::string(fill->name));
    bool is_equal = true;
    for (const std::uint64_t block :
         {std::uint64_t{0}, std::uint64_t{7}, (std::uint64_t{1} << 32) - 3, std::uint64_t{1} << 40})
      for (const std::size_t count : {0u, 1u, 3u, 4u, 5u, 31u, 32u, 63u, 64u, 65u, 128u, 200u}) {
        std::vector<std::uint32_t> words(count + 1, 77);
        fill->words({.key_low = key.low,
                     .key_high = key.high,
                     .block = block,
                     .stream = stream,
                     .out = words.data(),
                     .count = count});
        for (std::size_t i = 0; i < count; ++i) {
          const std::uint64_t own = block + i / 4;
          const Words expected = philox(
              key, {static_cast<std::uint32_t>(own), static_cast<std::uint32_t>(own >> 32), 0x13198a2e, 0x03707344});
          is_equal = is_equal && words[i] == expected[i % 4];
        }
        is_equal = is_equal && words[count] == 77;
      }
    CHECK(is_equal);
  }
  std::vector<std::uint32_t> words(5);
  fill_words(key, 3, stream, words);
  CHECK(words[4] == philox(key, {4, 0, 0x13198a2e, 0x03707344})[0]);
}

TEST_CASE("keys differ by seed and by name") {
  const auto value = [](std::uint64_t seed, const std::string& name) { return philox_u64(philox_key(seed, name), 0); };
  CHECK(value(1, "a") != value(2, "a"));
  CHECK(value(1, "a") != value(1, "b"));
  CHECK(value(1, "a") == value(1, "a"));
  CHECK(philox_u64({5, 6}, 0) != philox_u64({5, 6}, 1));
  CHECK(philox_u64({5, 6}, 1) != philox_u64({5, 6}, 1ull << 32));
}

TEST_CASE("uniform numbers stay inside their interval") {
  const PhiloxKey key{9, 9};
  double sum = 0;
  for (std::uint64_t i = 0; i < 10000; ++i) {
    const double u = philox_uniform(key, i);
    REQUIRE(u >= 0.0);
    REQUIRE(u < 1.0);
    sum += u;
  }
  CHECK(std::abs(sum / 10000 - 0.5) < 5 / std::sqrt(12.0 * 10000));
  // 1 + 2^-23 is the only float inside [1 + 2^-23, 1 + 2^-22): rounding up to the open end would give another.
  std::vector<float> narrow_range(10000);
  fill_uniform(key, 0, 1.0f + 0x1p-23f, 1.0f + 0x1p-22f, narrow_range);
  for (const float x : narrow_range) REQUIRE(x == 1.0f + 0x1p-23f);
  fill_uniform(key, 0, -2.0f, 3.0f, narrow_range);
  double mean = 0;
  for (const float x : narrow_range) {
    REQUIRE(x >= -2.0f);
    REQUIRE(x < 3.0f);
    mean += x / 10000.0;
  }
  CHECK(std::abs(mean - 0.5) < 5 * 5 / std::sqrt(12.0 * 10000));
  fill_uniform(key, 0, 2.0f, 2.0f, narrow_range);
  CHECK(narrow_range[17] == 2.0f);
}

TEST_CASE("philox_below is even over its range") {
  std::array<int, 7> counts{};
  for (std::uint64_t i = 0; i < 70000; ++i) ++counts[philox_below({3, 4}, i, counts.size())];
  double chi_squared = 0;
  for (const int c : counts) chi_squared += (c - 10000.0) * (c - 10000.0) / 10000.0;
  CHECK(chi_squared < 27.9);  // six degrees of freedom: exceeded by chance once in 10,000 keys
  CHECK(philox_below({3, 4}, 5, 1) == 0);
  CHECK(philox_below({3, 4}, 5, ~0ull) < ~0ull);
  CHECK_THROWS_AS(philox_below({3, 4}, 5, 0), BugError);
}
