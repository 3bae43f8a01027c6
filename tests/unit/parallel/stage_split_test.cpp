#include "parallel/schedule/stage_split.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "base/error.h"
#include "support/near.h"

using namespace scaletrain;

namespace {

double cost_of(const StageBlocks& part, const EndCosts& ends) {
  return static_cast<double>(part.count) + (part.embedding ? ends.embedding : 0.0) + (part.head ? ends.head : 0.0);
}

// Of each stage, over its chunks.
std::vector<double> stage_costs(const std::vector<StageBlocks>& split, std::int64_t stages, const EndCosts& ends) {
  std::vector<double> costs(static_cast<std::size_t>(stages), 0.0);
  for (std::size_t index = 0; index < split.size(); ++index) costs[index % costs.size()] += cost_of(split[index], ends);
  return costs;
}

double largest(const std::vector<double>& costs) {
  return *std::max_element(costs.begin(), costs.end());
}

std::vector<std::int64_t> counts_of(const std::vector<StageBlocks>& split) {
  std::vector<std::int64_t> counts;
  counts.reserve(split.size());
  for (const StageBlocks& part : split) counts.push_back(part.count);
  return counts;
}

// Calls visit with every split of `blocks` into virtual stages of which none but the first and the last is empty.
template <class Visit>
void every_split(std::int64_t blocks, std::size_t parts, std::vector<std::int64_t>& counts, const Visit& visit) {
  if (counts.size() + 1 == parts) {
    counts.push_back(blocks);
    if (parts <= 2 || counts.back() >= 0) visit(counts);
    counts.pop_back();
    return;
  }
  for (std::int64_t here = counts.empty() ? 0 : 1; here <= blocks; ++here) {
    counts.push_back(here);
    every_split(blocks - here, parts, counts, visit);
    counts.pop_back();
  }
}

struct SplitShape {
  std::int64_t stages, chunks;
};

// Every small case, with costs of the ends that tie and that do not.
template <class Visit>
void every_case(const Visit& visit) {
  for (const SplitShape& shape : {SplitShape{1, 1}, SplitShape{2, 1}, SplitShape{3, 1}, SplitShape{4, 1},
                                  SplitShape{1, 3}, SplitShape{2, 2}, SplitShape{3, 2}, SplitShape{2, 3}})
    for (std::int64_t blocks = std::max<std::int64_t>(0, shape.stages * shape.chunks - 2); blocks <= 9; ++blocks)
      for (const double embedding : {0.0, 0.3, 1.0, 7.0})
        for (const double head : {0.0, 0.4, 1.0, 2.5, 12.0}) visit(blocks, shape, EndCosts{embedding, head});
}

}  // namespace

TEST_CASE("no_split_has_a_smaller_largest_stage") {
  every_case([](std::int64_t blocks, const SplitShape& shape, const EndCosts& ends) {
    const auto split = split_stages(blocks, shape.stages, shape.chunks, ends);
    const double found = largest(stage_costs(split, shape.stages, ends));
    double best = std::numeric_limits<double>::infinity();
    std::vector<std::int64_t> counts;
    every_split(blocks, split.size(), counts, [&](const std::vector<std::int64_t>& other) {
      best = std::min(best, largest(stage_costs(given_stages(other), shape.stages, ends)));
    });
    if (found > best + 1e-12)
      FAIL_CHECK(blocks << " blocks, " << shape.stages << " x " << shape.chunks << ", " << ends.embedding << ", "
                        << ends.head << ": " << found << " where " << best << " is possible");
  });
}

TEST_CASE("of_splits_with_the_same_stage_totals_none_has_a_smaller_largest_chunk") {
  every_case([](std::int64_t blocks, const SplitShape& shape, const EndCosts& ends) {
    const auto largest_chunk = [&ends](const std::vector<StageBlocks>& split) {
      double cost = 0;
      for (const StageBlocks& part : split) cost = std::max(cost, cost_of(part, ends));
      return cost;
    };
    const auto split = split_stages(blocks, shape.stages, shape.chunks, ends);
    const std::vector<double> totals = stage_costs(split, shape.stages, ends);
    double best = std::numeric_limits<double>::infinity();
    std::vector<std::int64_t> counts;
    every_split(blocks, split.size(), counts, [&](const std::vector<std::int64_t>& other) {
      if (stage_costs(given_stages(other), shape.stages, ends) == totals)
        best = std::min(best, largest_chunk(given_stages(other)));
    });
    CHECK(largest_chunk(split) <= best);
  });
}

// Two stages whose costs could change places with a lower sum of squares, or with fewer blocks on the earlier one at
// the same costs, were not shared out as they should be.
TEST_CASE(
    "moving_a_block_to_another_stage_never_makes_a_split_more_even_nor_an_earlier_stage_smaller_at_the_same_cost") {
  every_case([](std::int64_t blocks, const SplitShape& shape, const EndCosts& ends) {
    const auto split = split_stages(blocks, shape.stages, shape.chunks, ends);
    const std::vector<double> costs = stage_costs(split, shape.stages, ends);
    for (std::size_t from = 0; from < split.size(); ++from) {
      const bool is_end = from == 0 || from + 1 == split.size();
      if (split[from].count < (is_end ? 1 : 2)) continue;
      const std::size_t giver = from % costs.size();
      for (std::size_t taker = 0; taker < costs.size(); ++taker) {
        if (taker == giver) continue;
        CHECK_FALSE(costs[taker] + 1 < costs[giver] - 1e-12);
        if (taker > giver) CHECK_FALSE(costs[taker] + 1 == costs[giver]);
      }
    }
  });
}

TEST_CASE("the_stages_of_a_split_follow_each_other_and_hold_every_block_once") {
  const auto check = [](const std::vector<StageBlocks>& split, std::int64_t blocks) {
    std::int64_t next = 0;
    for (const StageBlocks& stage : split) {
      CHECK(stage.first == next);
      CHECK(stage.count >= 0);
      CHECK(stage.embedding == (&stage == &split.front()));
      CHECK(stage.head == (&stage == &split.back()));
      next += stage.count;
    }
    CHECK(next == blocks);
  };
  check(split_stages(126, 16, 1, {0.5, 1.5}), 126);
  check(split_stages(126, 6, 5, {0.5, 1.5}), 126);
  check(split_stages(3, 8, 1, {1, 1}), 3);  // fewer than stages: someone has none
  check(split_stages(5, 1, 1, {9, 9}), 5);
}

TEST_CASE("no_virtual_stage_without_embedding_or_head_is_empty") {
  every_case([](std::int64_t blocks, const SplitShape& shape, const EndCosts& ends) {
    const auto split = split_stages(blocks, shape.stages, shape.chunks, ends);
    for (std::size_t index = 1; index + 1 < split.size(); ++index) CHECK(split[index].count >= 1);
  });
  // As many blocks as chunks: the last stage cannot give more of them away than the one beside the head.
  const std::vector<std::int64_t> counts = counts_of(split_stages(32, 4, 8, {0, 2.4}));
  CHECK(counts.back() == 0);
  CHECK(std::count(counts.begin(), counts.end(), 0) == 1);
}

TEST_CASE("ties_put_fewer_blocks_on_the_earlier_stages") {
  CHECK(counts_of(split_stages(10, 4, 1, {0, 0})) == std::vector<std::int64_t>{2, 2, 3, 3});
  // The extra blocks' chunks are the later ones, of all stages the same.
  CHECK(counts_of(split_stages(10, 4, 2, {0, 0})) == std::vector<std::int64_t>{1, 1, 1, 1, 1, 1, 2, 2});
}

TEST_CASE("a_costly_head_takes_blocks_off_the_last_stage") {
  const auto split = split_stages(12, 4, 1, {0, 3});
  CHECK(counts_of(split) == std::vector<std::int64_t>{3, 4, 4, 1});
  CHECK(largest(stage_costs(split, 4, {0, 3})) == 4);
}

// 32 blocks and a head of 2.4 on 4 stages are 8.6 each: the largest of the stages is the one that cannot be less than
// 9, not that with the largest chunk.
TEST_CASE("interleaved_chunks_are_balanced_by_their_stages_totals") {
  const EndCosts ends{0, 2.4};
  for (const std::int64_t chunks : {1, 2, 4}) {
    CAPTURE(chunks);
    const std::vector<double> costs = stage_costs(split_stages(32, 4, chunks, ends), 4, ends);
    CHECK(costs == std::vector<double>{8, 9, 9, 6 + 2.4});
  }
}

TEST_CASE("a_given_split_is_used_as_it_is") {
  const auto split = given_stages({5, 1, 6});
  CHECK(split[2].first == 6);
  CHECK(split[1].count == 1);
  CHECK((split[0].embedding && !split[0].head && !split[2].embedding && split[2].head));
  const auto ends = given_stages({0, 3, 0});
  CHECK((ends[0].count == 0 && ends[0].embedding && ends[2].count == 0 && ends[2].head));
  CHECK_THROWS_AS(given_stages({13, -1}), BugError);
}

namespace {

// Every way to divide the blocks: the least that the dearest stage can cost.
double least_cost(std::span<const double> costs, std::int64_t stages, const EndCosts& ends, bool is_first = true) {
  if (stages == 1) return std::accumulate(costs.begin(), costs.end(), ends.head + (is_first ? ends.embedding : 0.0));
  const std::size_t least = is_first ? 0 : 1;
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t count = least; count <= costs.size(); ++count) {
    const double own = std::accumulate(costs.begin(), costs.begin() + static_cast<std::ptrdiff_t>(count),
                                       is_first ? ends.embedding : 0.0);
    best = std::min(best, std::max(own, least_cost(costs.subspan(count), stages - 1, ends, false)));
  }
  return best;
}

}  // namespace

TEST_CASE("no division of blocks that cost different amounts has a smaller largest cost") {
  std::uint32_t state = 7;
  const auto random = [&state](std::uint32_t below) {
    state = state * 1664525u + 1013904223u;
    return (state >> 16) % below;
  };
  for (int round = 0; round < 200; ++round) {
    const std::int64_t stages = 1 + random(4);
    std::vector<double> costs(static_cast<std::size_t>(stages) + random(6));
    for (double& cost : costs) cost = random(3) == 0 ? 0.25 : 0.5 * (1 + random(3));
    const EndCosts ends{0.5 * random(2), 0.75 * random(4)};
    const auto split = split_stages(costs, stages, ends);
    CAPTURE(round);
    REQUIRE(std::ssize(split) == stages);
    double dearest = 0;
    std::int64_t first = 0;
    for (const StageBlocks& part : split) {
      CHECK(part.first == first);
      if (!part.embedding && !part.head) CHECK(part.count >= 1);
      double own = (part.embedding ? ends.embedding : 0.0) + (part.head ? ends.head : 0.0);
      for (std::int64_t i = 0; i < part.count; ++i) own += costs[static_cast<std::size_t>(first + i)];
      dearest = std::max(dearest, own);
      first += part.count;
    }
    CHECK(first == std::ssize(costs));
    CHECK(dearest == Near(least_cost(costs, stages, ends)).epsilon(1e-12));
  }
  // A third of a block each where nothing is trained: twice as many of them as of others, and the head's share.
  const std::vector<double> frozen = {1.0 / 3, 1.0 / 3, 1.0 / 3, 1.0 / 3, 1.0 / 3, 1.0 / 3, 1, 1};
  CHECK(counts_of(split_stages(frozen, 2, {})) == std::vector<std::int64_t>{6, 2});
}
