// A layout to run a config on, as a row of a test's table.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"

namespace scaletrain {

struct TestLayout {
  std::string name{};
  std::int64_t data, tensor, pipeline, zero;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  std::int64_t chunks = 1;
  bool sequence = false;
  std::int64_t micro_batch = 0;  // 0: as the config has it
  std::int64_t zero_group = 0;   // 0: all replicas
  ZeroReduceKind zero_reduce = ZeroReduceKind::use;
};

inline void lay_out(Config& config, const TestLayout& layout) {
  config.parallel.data = layout.data;
  config.parallel.tensor = layout.tensor;
  config.parallel.pipeline = layout.pipeline;
  config.parallel.zero = layout.zero;
  if (layout.zero_group > 0) config.parallel.zero_group = layout.zero_group;
  config.parallel.zero_reduce = layout.zero_reduce;
  config.parallel.schedule = layout.schedule;
  config.parallel.chunks = layout.chunks;
  config.parallel.sequence = layout.sequence;
  if (layout.micro_batch > 0) config.train.micro_batch = layout.micro_batch;
}

}  // namespace scaletrain
