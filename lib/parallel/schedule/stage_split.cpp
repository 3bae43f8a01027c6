#include "parallel/schedule/stage_split.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>
#include <utility>

#include "base/error.h"

namespace scaletrain {

namespace {

// One of those among which blocks are shared out.
struct Share {
  double fixed = 0.0;      // cost without any block
  std::int64_t least = 0;  // blocks it must have

  double cost(std::int64_t blocks) const { return fixed + static_cast<double>(blocks); }
};

// Block by block to whoever is cheapest with it, the last of equals. As all blocks cost the same, no other sharing has
// a smaller largest cost: a block goes beyond a bound only when nobody has room for it below.
std::vector<std::int64_t> share_out(std::int64_t blocks, const std::vector<Share>& shares) {
  struct Candidate {
    double cost = 0.0;  // with one block more
    std::size_t index = 0;
    bool operator<(const Candidate& other) const {
      return cost != other.cost ? cost > other.cost : index < other.index;  // the queue's top is the best
    }
  };
  std::vector<std::int64_t> counts;
  std::priority_queue<Candidate> queue;
  for (const Share& share : shares) {
    queue.push({share.cost(share.least + 1), counts.size()});
    counts.push_back(share.least);
    blocks -= share.least;
  }
  SCALETRAIN_CHECK(blocks >= 0);
  for (; blocks > 0; --blocks) {
    const std::size_t index = queue.top().index;
    queue.pop();
    ++counts[index];
    queue.push({shares[index].cost(counts[index] + 1), index});
  }
  return counts;
}

}  // namespace

std::vector<StageBlocks> split_stages(std::int64_t blocks, std::int64_t stages, std::int64_t chunks,
                                      const EndCosts& ends) {
  SCALETRAIN_CHECK(blocks >= 0 && stages >= 1 && chunks >= 1);
  SCALETRAIN_CHECK(std::isfinite(ends.embedding) && ends.embedding >= 0 && std::isfinite(ends.head) && ends.head >= 0);
  const std::int64_t last = stages * chunks - 1;
  const std::int64_t least = blocks >= last - 1 ? 1 : 0;
  const auto virtual_share = [&](std::int64_t index) {
    const bool is_end = index == 0 || index == last;
    return Share{(index == 0 ? ends.embedding : 0.0) + (index == last ? ends.head : 0.0), is_end ? 0 : least};
  };
  std::vector<Share> of_stages(static_cast<std::size_t>(stages));
  std::vector<std::vector<Share>> of_chunks(of_stages.size());
  for (std::int64_t index = 0; index <= last; ++index) {
    const auto stage = static_cast<std::size_t>(index % stages);
    of_chunks[stage].push_back(virtual_share(index));
    of_stages[stage].fixed += of_chunks[stage].back().fixed;
    of_stages[stage].least += of_chunks[stage].back().least;
  }
  const std::vector<std::int64_t> totals = share_out(blocks, of_stages);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(last) + 1);
  for (std::size_t stage = 0; stage < of_stages.size(); ++stage) {
    const std::vector<std::int64_t> own = share_out(totals[stage], of_chunks[stage]);
    for (std::size_t chunk = 0; chunk < own.size(); ++chunk) counts[chunk * of_stages.size() + stage] = own[chunk];
  }
  return given_stages(counts);
}

std::vector<StageBlocks> split_stages(std::span<const double> block_costs, std::int64_t stages, const EndCosts& ends) {
  const std::int64_t blocks = std::ssize(block_costs);
  SCALETRAIN_CHECK(stages >= 1);
  std::vector<double> before(block_costs.size() + 1, 0.0);  // cost of the blocks before
  for (std::size_t i = 0; i < block_costs.size(); ++i) before[i + 1] = before[i] + block_costs[i];
  const std::int64_t last = stages - 1;
  const std::int64_t least_inside = blocks >= last - 1 ? 1 : 0;
  constexpr double impossible = std::numeric_limits<double>::infinity();
  // By stage and the number of blocks up to its end: the least that the dearest stage so far can cost, which grows with
  // that number, and how many of the blocks come before the stage then.
  std::vector<double> dearest(before.size(), impossible);
  std::vector<std::vector<std::int64_t>> begins;
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    const double fixed = (stage == 0 ? ends.embedding : 0.0) + (stage == last ? ends.head : 0.0);
    const std::int64_t least = stage == 0 || stage == last ? 0 : least_inside;
    std::vector<double> with_stage(before.size(), impossible);
    std::vector<std::int64_t>& begin = begins.emplace_back(before.size(), 0);
    const std::int64_t fewest = std::max<std::int64_t>(0, stage - 1) * least_inside;  // before it
    for (std::int64_t end = fewest + least; end <= blocks; ++end) {
      const auto at = [&](std::int64_t first) {
        const double own = fixed + before[static_cast<std::size_t>(end)] - before[static_cast<std::size_t>(first)];
        return std::pair(stage == 0 ? 0.0 : dearest[static_cast<std::size_t>(first)], own);
      };
      // The first place where those before are as dear as this stage, or the one before it.
      std::int64_t low = fewest;
      std::int64_t high = stage == 0 ? 0 : end - least;
      while (low < high) {
        const std::int64_t middle = (low + high) / 2;
        const auto [others, own] = at(middle);
        if (others >= own) {
          high = middle;
        } else {
          low = middle + 1;
        }
      }
      for (const std::int64_t first : {low - 1, low}) {
        if (first < fewest) continue;
        const auto [others, own] = at(first);
        if (std::max(others, own) >= with_stage[static_cast<std::size_t>(end)]) continue;
        with_stage[static_cast<std::size_t>(end)] = std::max(others, own);
        begin[static_cast<std::size_t>(end)] = first;
      }
    }
    dearest = std::move(with_stage);
  }
  std::vector<std::int64_t> counts(static_cast<std::size_t>(stages));
  std::int64_t end = blocks;
  for (std::int64_t stage = last; stage >= 0; --stage) {
    const std::int64_t first = begins[static_cast<std::size_t>(stage)][static_cast<std::size_t>(end)];
    counts[static_cast<std::size_t>(stage)] = end - first;
    end = first;
  }
  SCALETRAIN_CHECK_EQ(end, 0);
  return given_stages(counts);
}

std::vector<StageBlocks> given_stages(const std::vector<std::int64_t>& counts) {
  SCALETRAIN_CHECK(!counts.empty());
  std::vector<StageBlocks> stages;
  std::int64_t first = 0;
  for (const std::int64_t count : counts) {
    SCALETRAIN_CHECK(count >= 0);
    stages.push_back({.first = first, .count = count});
    first += count;
  }
  stages.front().embedding = true;
  stages.back().head = true;
  return stages;
}

}  // namespace scaletrain
