#include <doctest/doctest.h>

#include <set>
#include <vector>

#include "base/numbers/philox.h"
#include "data/order/sampler.h"

using namespace scaletrain;

TEST_CASE("a keyed permutation hits each index once and its inverse undoes it") {
  for (std::int64_t size = 1; size <= 130; ++size) {
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      const KeyedPermutation permutation(philox_key(seed, "test"), size);
      std::vector<int> hits(static_cast<std::size_t>(size), 0);
      for (std::int64_t i = 0; i < size; ++i) {
        const std::int64_t image = permutation.forward(i);
        REQUIRE((image >= 0 && image < size));
        ++hits[static_cast<std::size_t>(image)];
        REQUIRE(permutation.inverse(image) == i);
      }
      for (const int count : hits) REQUIRE(count == 1);
    }
  }
}

TEST_CASE("a keyed permutation works on sizes beyond 32 bits") {
  const std::int64_t size = 3'000'000'000'007;
  const KeyedPermutation permutation(philox_key(1, "large"), size);
  std::set<std::int64_t> images;
  for (std::int64_t i = 0; i < 1000; ++i) {
    const std::int64_t index = size / 1000 * i;
    const std::int64_t image = permutation.forward(index);
    REQUIRE((image >= 0 && image < size));
    REQUIRE(permutation.inverse(image) == index);
    images.insert(image);
  }
  CHECK(images.size() == 1000);
  CHECK(*images.rbegin() > size / 2);
}

TEST_CASE("keyed permutations look random: each index is equally likely in each place") {
  // 4000 keys of a permutation of 7: each cell expects 4000/7 = 571 with a deviation of 22; the bound is 6 deviations.
  const std::int64_t size = 7;
  const int keys = 4000;
  std::vector<int> cells(49, 0);
  for (int k = 0; k < keys; ++k) {
    const KeyedPermutation permutation(philox_key(static_cast<std::uint64_t>(k), "cells"), size);
    for (std::int64_t i = 0; i < size; ++i) ++cells[static_cast<std::size_t>(i * size + permutation.forward(i))];
  }
  for (const int count : cells) CHECK(std::abs(count - 4000.0 / 7) < 6 * 22.1);
}
