#include "plan/longest_wait.h"

#include <algorithm>

#include "base/numbers/checked.h"

namespace scaletrain {

std::int64_t longest_evaluation_part(const PhasePlan& plan) {
  return std::max<std::int64_t>(
      8, checked_mul<std::int64_t>(4, checked_mul(plan.mesh.degree(Axis::pipeline), plan.chunks)));
}

std::int64_t longest_wait(const PhasePlan& plan) {
  // Forward, backward to the input, backward to the weights; the forward's work again.
  const std::int64_t passes = plan.recompute == RecomputeKind::none ? 3 : 4;
  constexpr std::int64_t tensor_updates = 2;  // its share of the norm, and the optimizer's step
  const std::int64_t stages = plan.mesh.degree(Axis::pipeline);
  std::int64_t largest_stage = 0;
  for (std::int64_t stage = 0; stage < stages; ++stage)
    largest_stage = std::max(largest_stage, narrow<std::int64_t>(plan.units_of_stage(stage).size()));
  const std::int64_t turns = std::max(checked_mul(passes, checked_add(plan.num_micro_batches, stages - 1)),
                                      checked_add(longest_evaluation_part(plan), stages - 1));
  return checked_add(checked_mul(turns, largest_stage),
                     checked_mul(tensor_updates, narrow<std::int64_t>(plan.table.parameters().size())));
}

}  // namespace scaletrain
