#include "parallel/stage_split.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "base/error.h"

namespace scaletrain {

namespace {

// Blocks that fit virtual stage `index` under the bottleneck; negative if its fixed part alone does not fit. The
// comparison and the stage's cost are computed by the same expression, so that a bottleneck taken from a split admits
// that split.
class Capacity {
 public:
  Capacity(std::int64_t virtual_stages, double embedding_cost, double head_cost)
      : last_(virtual_stages - 1), embedding_(embedding_cost), head_(head_cost) {}

  double cost(std::int64_t index, std::int64_t blocks) const {
    return (index == 0 ? embedding_ : 0.0) + (index == last_ ? head_ : 0.0) + static_cast<double>(blocks);
  }
  std::int64_t blocks(std::int64_t index, double bottleneck, std::int64_t limit) const {
    const double room = bottleneck - cost(index, 0);
    if (room < -1.0) return -1;
    std::int64_t count = std::min(limit, static_cast<std::int64_t>(std::floor(std::min(room, 1e15))) + 1);
    while (count >= 0 && cost(index, count) > bottleneck) --count;
    return count;
  }

 private:
  std::int64_t last_;
  double embedding_;
  double head_;
};

bool fits(const Capacity& capacity, std::int64_t blocks, std::int64_t virtual_stages, double bottleneck) {
  std::int64_t room = 0;
  for (std::int64_t index = 0; index < virtual_stages; ++index) {
    const std::int64_t count = capacity.blocks(index, bottleneck, blocks);
    if (count < 0) return false;
    room += count;
  }
  return room >= blocks;
}

std::vector<StageBlocks> stages_from(const std::vector<std::int64_t>& counts) {
  std::vector<StageBlocks> stages;
  std::int64_t first = 0;
  for (const std::int64_t count : counts) {
    stages.push_back({.first = first, .count = count});
    first += count;
  }
  stages.front().embedding = true;
  stages.back().head = true;
  return stages;
}

}  // namespace

std::vector<StageBlocks> split_stages(std::int64_t blocks, std::int64_t virtual_stages, double embedding_cost,
                                      double head_cost) {
  SCALETRAIN_CHECK(blocks >= 0 && virtual_stages >= 1);
  SCALETRAIN_CHECK(std::isfinite(embedding_cost) && embedding_cost >= 0 && std::isfinite(head_cost) && head_cost >= 0);
  const Capacity capacity(virtual_stages, embedding_cost, head_cost);
  // The optimum is the cost of some stage with a whole number of blocks: search among those of each kind of stage.
  double best = capacity.cost(0, blocks) + capacity.cost(virtual_stages - 1, blocks);
  const std::int64_t kinds[] = {0, std::min<std::int64_t>(1, virtual_stages - 1), virtual_stages - 1};
  for (const std::int64_t kind : kinds) {
    std::int64_t low = 0;
    std::int64_t high = blocks;
    if (!fits(capacity, blocks, virtual_stages, capacity.cost(kind, high))) continue;
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (fits(capacity, blocks, virtual_stages, capacity.cost(kind, middle))) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    best = std::min(best, capacity.cost(kind, low));
  }
  // Within the bottleneck, even out: always to the cheapest stage that has room, the earliest of equals.
  std::vector<std::int64_t> counts(static_cast<std::size_t>(virtual_stages), 0);
  for (std::int64_t placed = 0; placed < blocks; ++placed) {
    std::int64_t chosen = -1;
    for (std::int64_t index = 0; index < virtual_stages; ++index) {
      const double cost = capacity.cost(index, counts[static_cast<std::size_t>(index)] + 1);
      if (cost > best) continue;
      if (chosen < 0 || cost < capacity.cost(chosen, counts[static_cast<std::size_t>(chosen)] + 1)) chosen = index;
    }
    SCALETRAIN_CHECK(chosen >= 0);
    ++counts[static_cast<std::size_t>(chosen)];
  }
  return stages_from(counts);
}

std::vector<StageBlocks> given_stages(std::int64_t blocks, const std::vector<std::int64_t>& counts,
                                      std::int64_t virtual_stages) {
  if (static_cast<std::int64_t>(counts.size()) != virtual_stages) {
    throw UserError(fmt::format("parallel.stage_layers: {} numbers, expected {} (parallel.pipeline x parallel.chunks)",
                                counts.size(), virtual_stages));
  }
  for (std::size_t index = 0; index < counts.size(); ++index) {
    if (counts[index] < 0 || counts[index] > blocks) {
      throw UserError(fmt::format("parallel.stage_layers: number {} is {}, expected 0 to {} (model.layers)", index + 1,
                                  counts[index], blocks));
    }
  }
  for (std::size_t index = 1; index + 1 < counts.size(); ++index) {
    if (counts[index] == 0) {
      throw UserError(fmt::format(
          "parallel.stage_layers: number {} is 0, and that part of the pipeline has neither the embedding nor "
          "the head: it would hold nothing; give it a layer",
          index + 1));
    }
  }
  std::int64_t sum = 0;
  for (const std::int64_t count : counts) sum = checked_add(sum, count);
  if (sum != blocks) {
    throw UserError(fmt::format(
        "parallel.stage_layers: the numbers sum to {}, but model.layers is {}; they must be equal", sum, blocks));
  }
  return stages_from(counts);
}

}  // namespace scaletrain
