#include "parallel/schedule/stage_split.h"

#include <algorithm>
#include <cmath>
#include <queue>

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
