#include "plan/stage_work.h"

#include <algorithm>

#include "base/error.h"

namespace scaletrain {

namespace {

WorkCosts& operator+=(WorkCosts& sum, const WorkCosts& more) {
  sum.forward += more.forward;
  sum.backward_input += more.backward_input;
  sum.backward_weight += more.backward_weight;
  return sum;
}

WorkCosts scaled(const WorkCosts& costs, double factor) {
  return {costs.forward * factor, costs.backward_input * factor, costs.backward_weight * factor};
}

// Multiply-adds per token; all blocks are alike, or are taken as their average where some have windows.
struct BlockWorkCosts {
  WorkCosts costs;
  double recomputed = 0.0;  // of the input part
};

BlockWorkCosts block_work(const PhasePlan& phase) {
  double matrices = 0.0;
  for (const Parameter& parameter : phase.table.parameters())
    if (parameter.unit == 1 && parameter.shape.num_dims() == 2)
      matrices += static_cast<double>(parameter.shape.num_elements());
  const double attention = static_cast<double>(phase.model.heads * phase.model.head_size) *
                           static_cast<double>(phase.model.context) * attention_share(phase.model);
  // Which is computed again where a norm behind it reads it.
  const double last_product =
      phase.model.post_norm ? 0.0
                            : static_cast<double>(phase.model.ffn_hidden) * static_cast<double>(phase.model.hidden);
  const double again = phase.recompute == RecomputeKind::full ? matrices + attention - last_product : 0.0;
  return {.costs = {.forward = matrices + attention,
                    .backward_input = matrices + 2 * attention + again,
                    .backward_weight = matrices},
          .recomputed = again};
}

WorkCosts head_work(const PhasePlan& phase) {
  const double product = static_cast<double>(phase.model.vocab) * static_cast<double>(phase.model.hidden);
  const bool is_split = phase.schedule_kind == ScheduleKind::zb_h1;
  return {.forward = 0.0, .backward_input = 2 * product, .backward_weight = (is_split ? 2 : 1) * product};
}

}  // namespace

EndCosts end_costs(const PhasePlan& phase) {
  return {.embedding = 0.0, .head = head_work(phase).total() / block_work(phase).costs.total()};
}

StageWork stage_work(const PhasePlan& phase) {
  const BlockWorkCosts block = block_work(phase);
  const WorkCosts head = head_work(phase);
  const auto degree = static_cast<std::size_t>(phase.mesh.degree(Axis::pipeline));
  StageWork work;
  work.stages.assign(degree, 0.0);
  double forward = 0.0;
  double total = 0.0;
  double again = 0.0;
  for (std::size_t chunk = 0; chunk < phase.stages.size(); ++chunk) {
    const auto blocks = static_cast<double>(phase.stages[chunk].count);
    WorkCosts costs = scaled(block.costs, blocks);
    again += block.recomputed * blocks;
    if (phase.stages[chunk].head) costs += head;
    forward += costs.forward;
    total += costs.total();
    work.stages[chunk % degree] += costs.total();
    work.chunks.push_back(costs);
  }
  SCALETRAIN_CHECK(forward > 0.0);
  work.head_share = head.total() / work.stages.back();
  work.recomputed = again / (total - again);
  const double unit = static_cast<double>(work.chunks.size()) / forward;
  for (WorkCosts& costs : work.chunks) costs = scaled(costs, unit);
  for (double& stage : work.stages) stage *= static_cast<double>(degree) / total;
  return work;
}

}  // namespace scaletrain
