// Which blocks of the model each pipeline chunk holds. Embedding and head are counted with their cost, in units of one
// block.
#pragma once

#include <cstdint>
#include <vector>

namespace scaletrain {

// Virtual stage s (of stages * chunks) holds blocks [first, first + count), the embedding if it is the first, the head
// if the last.
struct StageBlocks {
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool embedding = false;
  bool head = false;
};

// Minimises the largest virtual stage's cost over contiguous splits (binary search on the bottleneck); ties put fewer
// blocks on the later stages. `embedding_cost` and `head_cost` in blocks.
std::vector<StageBlocks> split_stages(std::int64_t blocks, std::int64_t virtual_stages, double embedding_cost,
                                      double head_cost);
// A split the user gave: counts of blocks per virtual stage, which must sum to `blocks`; only the first and the last,
// which hold the embedding and the head, may have none (UserError naming parallel.stage_layers).
std::vector<StageBlocks> given_stages(std::int64_t blocks, const std::vector<std::int64_t>& counts,
                                      std::int64_t virtual_stages);

}  // namespace scaletrain
