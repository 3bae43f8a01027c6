// A range of a rank's parameter as boxes of the global tensor.
#pragma once

#include "base/error.h"
#include "parallel/shard_layout.h"

namespace scaletrain {

// Calls visit(const Box& box, const ParamRange& part) for each box that the range consists of, with the part of the
// range where its values lie, in order. `span`: the parameter's place in the layout.
template <class Visit>
void for_each_box(const ParamSpan& span, const ParamRange& range, Visit visit) {
  ParamRange part = range;
  for (const Box& box : boxes_of_range(span.box, range.first, range.count)) {
    part.count = box.num_elements();
    visit(box, part);
    part.first += part.count;
    part.flat_offset += part.count;
    part.shard_offset += part.count;
  }
  SCALETRAIN_CHECK_EQ(part.first, range.first + range.count);
}

}  // namespace scaletrain
