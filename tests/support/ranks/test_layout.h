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
};

inline void lay_out(Config& config, const TestLayout& layout) {
  config.parallel.data = layout.data;
  config.parallel.tensor = layout.tensor;
  config.parallel.pipeline = layout.pipeline;
  config.parallel.zero = layout.zero;
  config.parallel.schedule = layout.schedule;
  config.parallel.chunks = layout.chunks;
  config.parallel.sequence = layout.sequence;
  if (layout.micro_batch > 0) config.train.micro_batch = layout.micro_batch;
}

}  // namespace scaletrain
