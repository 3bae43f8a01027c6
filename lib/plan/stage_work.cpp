#include "plan/stage_work.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "base/error.h"
#include "base/numbers/checked.h"

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

// Multiply-adds per token.
struct BlockWorkCosts {
  WorkCosts costs;
  double recomputed = 0.0;  // of the input part
};

// What blocks have in common, or are taken to have on the average where some have windows.
struct CommonWork {
  double attention = 0.0;
  double last_product = 0.0;  // which a full recomputation leaves out
};

CommonWork common_work(const PhasePlan& phase) {
  CommonWork common;
  common.attention = static_cast<double>(phase.model.heads * phase.model.head_size) *
                     static_cast<double>(phase.model.context) * attention_share(phase.model);
  // Which is computed again where a norm behind it reads it.
  if (!phase.model.post_norm)
    common.last_product = static_cast<double>(phase.model.ffn_hidden) * static_cast<double>(phase.model.hidden);
  return common;
}

// By unit: elements of its matrices, and of those that are trained.
struct UnitMatrices {
  std::vector<double> all, trained;
};

UnitMatrices unit_matrices(const ParamTable& table) {
  UnitMatrices out{std::vector<double>(table.units().size()), std::vector<double>(table.units().size())};
  for (const Parameter& parameter : table.parameters()) {
    if (parameter.shape.num_dims() != 2) continue;
    const auto unit = static_cast<std::size_t>(parameter.unit);
    const auto elements = static_cast<double>(parameter.shape.num_elements());
    out.all[unit] += elements;
    if (parameter.role == ParamRole::trained) out.trained[unit] += elements;
  }
  return out;
}

// No backward goes through units before the first one that is trained, and none makes gradients of frozen weights.
BlockWorkCosts block_work(const PhasePlan& phase, const CommonWork& common, const UnitMatrices& matrices, int unit) {
  const double all = matrices.all[static_cast<std::size_t>(unit)];
  const double forward = all + common.attention;
  if (unit < phase.table.first_trained_unit()) return {.costs = {forward, 0.0, 0.0}, .recomputed = 0.0};
  const double again = phase.recompute == RecomputeKind::full ? all + common.attention - common.last_product : 0.0;
  return {.costs = {.forward = forward,
                    .backward_input = all + 2 * common.attention + again,
                    .backward_weight = matrices.trained[static_cast<std::size_t>(unit)]},
          .recomputed = again};
}

WorkCosts head_work(const PhasePlan& phase) {
  const double product = static_cast<double>(phase.model.vocab) * static_cast<double>(phase.model.hidden);
  const Parameter* const weight = phase.table.find("head.weight");
  SCALETRAIN_CHECK(weight != nullptr);
  const double for_weight = weight->role == ParamRole::trained ? product : 0.0;
  const double again = phase.schedule_kind == ScheduleKind::zb_h1 ? product : 0.0;  // the logits
  return {.forward = 0.0, .backward_input = 2 * product, .backward_weight = again + for_weight};
}

}  // namespace

EndCosts end_costs(const PhasePlan& phase) {
  const CommonWork common = common_work(phase);
  const UnitMatrices matrices = unit_matrices(phase.table);
  const int last = narrow<int>(phase.model.layers);
  return {.embedding = 0.0, .head = head_work(phase).total() / block_work(phase, common, matrices, last).costs.total()};
}

std::vector<double> block_costs(const PhasePlan& phase) {
  const CommonWork common = common_work(phase);
  const UnitMatrices matrices = unit_matrices(phase.table);
  std::vector<double> costs;
  for (std::int64_t block = 0; block < phase.model.layers; ++block)
    costs.push_back(block_work(phase, common, matrices, narrow<int>(1 + block)).costs.total());
  const bool are_alike = std::adjacent_find(costs.begin(), costs.end(), std::not_equal_to<>()) == costs.end();
  if (are_alike) return {};
  const double last = costs.back();
  for (double& cost : costs) cost /= last;
  return costs;
}

StageWork stage_work(const PhasePlan& phase) {
  const CommonWork common = common_work(phase);
  const UnitMatrices matrices = unit_matrices(phase.table);
  const WorkCosts head = head_work(phase);
  const auto degree = static_cast<std::size_t>(phase.mesh.degree(Axis::pipeline));
  StageWork work;
  work.stages.assign(degree, 0.0);
  double forward = 0.0;
  double total = 0.0;
  double again = 0.0;
  for (std::size_t chunk = 0; chunk < phase.stages.size(); ++chunk) {
    const StageBlocks& blocks = phase.stages[chunk];
    WorkCosts costs{0.0, 0.0, 0.0};
    for (std::int64_t i = 0; i < blocks.count; ++i) {
      const BlockWorkCosts block = block_work(phase, common, matrices, narrow<int>(1 + blocks.first + i));
      costs += block.costs;
      again += block.recomputed;
    }
    if (blocks.head) costs += head;
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
