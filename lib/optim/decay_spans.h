// Which elements of a stretch of a flat buffer are decayed, and by how much. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/operations.h"
#include "parallel/param_table.h"
#include "parallel/shard_layout.h"

namespace scaletrain {

// Elements [first, first + count) of flat buffer `buffer`.
struct FlatRange {
  int buffer = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// Ascending spans with offsets relative to range.first: weight_decay where the table says that the parameter decays, 0
// where not. Padding is in none of them.
std::vector<DecaySpan> decay_spans(const ShardLayout& layout, const ParamTable& table, const FlatRange& range,
                                   double weight_decay);

}  // namespace scaletrain
