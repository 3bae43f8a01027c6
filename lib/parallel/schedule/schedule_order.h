// The order of compute on each stage, and when it would run on an ideal machine: what a schedule is generated from.
// Internal to lib/parallel.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/schedule/schedule.h"

namespace scaletrain {

struct ScheduleShape {
  ScheduleKind kind = ScheduleKind::one_f_one_b;
  std::int64_t stages = 1;
  std::int64_t micro_batches = 1;
  std::int64_t chunks = 1;
  bool forward_only = false;
  std::int64_t lowest_backward = 0;  // virtual stage; gradients go no further
  std::int64_t virtual_stages() const { return stages * chunks; }
};

// One piece of compute: forward, backward, backward_input or backward_weight.
struct Work {
  Opcode op = Opcode::forward;
  std::int64_t chunk = 0;
  std::int64_t micro_batch = 0;
};

// The work of one stage in its order.
std::vector<Work> work_order(const ScheduleShape& shape, std::int64_t stage);

// When results exist if every forward, input part and weight part takes one unit, and transfers nothing, each stage
// following its order as early as it can.
struct Timeline {
  std::vector<std::vector<std::int64_t>> start;  // [stage][index in work_order]
  std::vector<std::int64_t> activation;          // [virtual stage * M + micro-batch]: end of its forward
  std::vector<std::int64_t> gradient;            // the same: end of its backward (input part)
};
Timeline ideal_timeline(const ScheduleShape& shape, const std::vector<std::vector<Work>>& orders);

}  // namespace scaletrain
