// Who is in staging, by hand: units 0 to 3 with a bucket of their own each, and bucket 4, which units 0 and 3 share.
#include "store/residency.h"

#include <doctest/doctest.h>

using namespace scaletrain;

namespace {

using Purpose = Residency::Purpose;
using Buckets = std::vector<int>;

StoreMemory sharded_memory(int num_staging) {
  StoreMemory memory;
  memory.zero = ZeroPolicy::of_stage(3);
  memory.data_degree = 2;
  memory.num_staging = num_staging;
  memory.buckets.resize(5);
  memory.buckets[4].shared = true;
  return memory;
}

Buckets buckets_of(int unit) {
  return unit == 0 || unit == 3 ? Buckets{unit, 4} : Buckets{unit};
}

struct Rank0 {
  StoreMemory memory = sharded_memory(2);
  Residency residency{memory};
  Residency::Change bring(int unit, Purpose purpose) { return residency.bring(unit, buckets_of(unit), purpose); }
  // What is gathered for it.
  Buckets use(int unit) {
    Buckets gathers = bring(unit, Purpose::acquire).gathers;
    residency.acquire(unit);
    residency.release(unit);
    return gathers;
  }
};

}  // namespace

TEST_CASE("a unit stays until its place is needed, and the least recently used leaves") {
  Rank0 rank;
  CHECK(rank.use(1) == Buckets{1});
  CHECK(rank.use(2) == Buckets{2});
  CHECK(rank.use(2).empty());
  CHECK(rank.use(1).empty());  // now used later than unit 2
  const auto change = rank.bring(3, Purpose::acquire);
  CHECK(change.has_place);
  CHECK(change.evicted == 2);
  CHECK(change.gathers == Buckets{3, 4});
  CHECK(rank.residency.staging_of(2) == -1);
  CHECK(rank.residency.staging_of(1) >= 0);
}

TEST_CASE("shared buckets are gathered once and stay until the values change") {
  Rank0 rank;
  CHECK(rank.use(0) == Buckets{0, 4});
  rank.use(1);
  rank.use(2);
  CHECK(rank.use(3) == Buckets{3});
  CHECK(rank.use(0) == Buckets{0});
  rank.residency.clear();
  CHECK(rank.use(3) == Buckets{3, 4});
}

TEST_CASE("a prefetch takes no place from a unit in use, nor from one that waits for its use") {
  Rank0 rank;
  rank.bring(1, Purpose::acquire);
  rank.residency.acquire(1);
  CHECK(rank.bring(2, Purpose::prefetch).gathers == Buckets{2});
  CHECK(rank.bring(2, Purpose::prefetch).gathers.empty());
  CHECK_FALSE(rank.bring(3, Purpose::prefetch).has_place);
  // An acquire may take the place of what was only prefetched, but not of what is in use.
  CHECK(rank.bring(3, Purpose::acquire).evicted == 2);
  rank.residency.acquire(3);
  CHECK_FALSE(rank.bring(2, Purpose::acquire).has_place);
  rank.residency.release(1);
  CHECK(rank.bring(2, Purpose::prefetch).evicted == 1);
}

TEST_CASE("what was used leaves before what waits for its use, though that came earlier") {
  Rank0 rank;
  rank.bring(1, Purpose::prefetch);
  rank.use(2);
  CHECK(rank.bring(3, Purpose::acquire).evicted == 2);
}

TEST_CASE("without sharded parameters everything is there") {
  StoreMemory memory = sharded_memory(2);
  memory.zero = ZeroPolicy::of_stage(2);
  Residency residency(memory);
  const auto change = residency.bring(1, buckets_of(1), Purpose::acquire);
  CHECK(change.has_place);
  CHECK(change.gathers.empty());
  residency.acquire(1);
  residency.release(1);
}

TEST_CASE("states are equal if the same follows, whenever they came about") {
  Rank0 a;
  Rank0 b;
  for (const int unit : {1, 2}) a.use(unit);
  for (const int unit : {1, 2, 1, 2, 2}) b.use(unit);
  b.residency = Residency(b.residency);
  CHECK(a.residency == b.residency);
  b.use(1);
  CHECK(a.residency != b.residency);
}
