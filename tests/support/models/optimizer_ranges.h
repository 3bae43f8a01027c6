// All ranges that a store's optimizer would update at once, of memory that the host reaches.
#pragma once

#include <vector>

#include "store/param_store.h"
#include "support/ranks/host_stream.h"

namespace scaletrain {

inline std::vector<OptimizerRange> optimizer_ranges(ParamStore& store) {
  std::vector<OptimizerRange> ranges;
  store.update_ranges(host_stream(), [&ranges](const OptimizerRange& range) { ranges.push_back(range); });
  return ranges;
}

}  // namespace scaletrain
