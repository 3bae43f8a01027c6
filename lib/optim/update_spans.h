// Which elements of a stretch of a flat buffer are updated, and which decay and learning rate they have. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "backend/operations.h"
#include "parallel/param_table.h"
#include "parallel/shard_layout.h"
#include "store/param_store.h"

namespace scaletrain {

// Elements [first, first + count) of flat buffer `buffer`.
struct FlatRange {
  int buffer = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

inline FlatRange place_of(const OptimizerRange& range) {
  return {.buffer = range.buffer, .first = range.first, .count = range.gradient.num_elements()};
}

// What of a parameter's span lies in a stretch: `count` elements, from the stretch's `first` on.
struct SpanPart {
  const ParamSpan& span;
  const Parameter& parameter;
  std::int64_t first = 0;
  std::int64_t count = 0;
};
// Ascending; padding is in none. They refer to the layout and the table.
std::vector<SpanPart> parts_in(const ShardLayout& layout, const ParamTable& table, const FlatRange& range);

// Ascending spans with offsets relative to range.first: weight_decay, times the parameter's factor on it, where the
// table says that it decays, 0 where not, and its factor on the learning rate, times factors[its index in the table]
// where there are any. Of parameters that join after so many updates (Parameter::joins_after): what joins at other
// times, and padding, is in none of them. With a choice of parameters nor is what it leaves out.
using ParameterChoice = std::function<bool(const Parameter&)>;
std::vector<UpdateSpan> update_spans(const ShardLayout& layout, const ParamTable& table, const FlatRange& range,
                                     double weight_decay, std::span<const double> factors = {},
                                     std::int64_t joins_after = 0, const ParameterChoice& is_chosen = {});

}  // namespace scaletrain
