#include "parallel/stage_split.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "base/error.h"

using namespace scaletrain;

namespace {

double cost_of(const StageBlocks& stage, double embedding, double head) {
  return static_cast<double>(stage.count) + (stage.embedding ? embedding : 0.0) + (stage.head ? head : 0.0);
}

double bottleneck(const std::vector<StageBlocks>& stages, double embedding, double head) {
  double largest = 0;
  for (const StageBlocks& stage : stages) largest = std::max(largest, cost_of(stage, embedding, head));
  return largest;
}

// The smallest bottleneck over all splits of `blocks` into the stages from `index` on.
double best_by_trying(std::int64_t blocks, std::int64_t index, std::int64_t stages, double embedding, double head) {
  const double fixed = (index == 0 ? embedding : 0.0) + (index == stages - 1 ? head : 0.0);
  if (index == stages - 1) return fixed + static_cast<double>(blocks);
  double best = std::numeric_limits<double>::infinity();
  for (std::int64_t here = 0; here <= blocks; ++here) {
    const double rest = best_by_trying(blocks - here, index + 1, stages, embedding, head);
    best = std::min(best, std::max(fixed + static_cast<double>(here), rest));
  }
  return best;
}

}  // namespace

TEST_CASE("the bottleneck of a split is the smallest of all splits") {
  for (std::int64_t blocks = 0; blocks <= 9; ++blocks) {
    for (std::int64_t stages = 1; stages <= 5; ++stages) {
      for (const double embedding : {0.0, 0.3, 1.0, 2.5, 7.0}) {
        for (const double head : {0.0, 0.4, 1.5, 3.0, 12.0}) {
          const auto split = split_stages(blocks, stages, embedding, head);
          const double found = bottleneck(split, embedding, head);
          const double best = best_by_trying(blocks, 0, stages, embedding, head);
          if (found > best + 1e-12)
            FAIL_CHECK(blocks << " blocks, " << stages << " stages, " << embedding << ", " << head << ": " << found
                              << " where " << best << " is possible");
        }
      }
    }
  }
}

TEST_CASE("the stages of a split follow each other and hold every block once") {
  for (const auto& split : {split_stages(126, 16, 0.5, 1.5), split_stages(3, 8, 1, 1), split_stages(5, 1, 9, 9)}) {
    std::int64_t next = 0;
    for (const StageBlocks& stage : split) {
      CHECK(stage.first == next);
      CHECK(stage.count >= 0);
      CHECK(stage.embedding == (&stage == &split.front()));
      CHECK(stage.head == (&stage == &split.back()));
      next += stage.count;
    }
  }
  CHECK(split_stages(126, 16, 0.5, 1.5).back().first + split_stages(126, 16, 0.5, 1.5).back().count == 126);
}

TEST_CASE("ties put fewer blocks on the later stages") {
  const auto split = split_stages(10, 4, 0, 0);
  const std::int64_t counts[] = {3, 3, 2, 2};
  for (std::size_t index = 0; index < 4; ++index) CHECK(split[index].count == counts[index]);
}

TEST_CASE("a costly head takes blocks off the last stage") {
  const auto split = split_stages(12, 4, 0, 3);
  CHECK(split[3].count < split[0].count);
  CHECK(bottleneck(split, 0, 3) == 4);
}

TEST_CASE("a given split is used as it is, and refused by name when it does not fit") {
  const auto split = given_stages(12, {5, 1, 6}, 3);
  CHECK(split[2].first == 6);
  CHECK(split[1].count == 1);
  CHECK_THROWS_WITH_AS(given_stages(12, {5, 6}, 2),
                       "parallel.stage_layers: the numbers sum to 11, but model.layers is 12; they must be equal",
                       UserError);
  CHECK_THROWS_AS(given_stages(12, {6, 6}, 3), UserError);
  CHECK_THROWS_AS(given_stages(12, {13, -1}, 2), UserError);
}

TEST_CASE("a stage with no layers may hold the embedding or the head, and is refused if it would hold nothing") {
  const auto ends = given_stages(3, {0, 3, 0}, 3);
  CHECK((ends[0].count == 0 && ends[0].embedding && ends[2].count == 0 && ends[2].head));
  CHECK_THROWS_WITH_AS(given_stages(12, {5, 0, 7}, 3),
                       "parallel.stage_layers: number 2 is 0, and that part of the pipeline has neither the embedding "
                       "nor the head: it would hold nothing; give it a layer",
                       UserError);
}
