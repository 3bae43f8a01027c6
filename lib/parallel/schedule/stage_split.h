// Which blocks of the model each pipeline chunk holds. Embedding and head are counted with their cost, in units of one
// block.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace scaletrain {

// Virtual stage v = chunk * stages + stage holds blocks [first, first + count), the embedding if it is the first, the
// head if the last.
struct StageBlocks {
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool embedding = false;
  bool head = false;
};

// In blocks.
struct EndCosts {
  double embedding = 0.0;
  double head = 0.0;
};

// Minimises the largest stage's cost, over all its chunks: that is what a step of the pipeline waits for. Then, within
// each stage, the largest chunk's. Each step of the way is as even as may be, and of equals the earlier stage and the
// earlier chunk get the fewer blocks: they hold the most micro-batches at a time. No virtual stage is without a block
// but the first and the last, which hold the embedding and the head, as long as there are blocks enough for that.
std::vector<StageBlocks> split_stages(std::int64_t blocks, std::int64_t stages, std::int64_t chunks,
                                      const EndCosts& ends);
// The same of blocks that cost different amounts (of which some are frozen), for stages of one chunk: minimises the
// largest stage's cost. block_costs: by block, in the units of the ends.
std::vector<StageBlocks> split_stages(std::span<const double> block_costs, std::int64_t stages, const EndCosts& ends);
// A split the user gave (config/layout_rules.h says what may be): counts of blocks per virtual stage.
std::vector<StageBlocks> given_stages(const std::vector<std::int64_t>& counts);

}  // namespace scaletrain
