#include "plan/describe/run_time.h"

#include <algorithm>

#include "base/numbers/checked.h"
#include "config/batch_ramp.h"
#include "optim/gradient_noise.h"
#include "optim/optimizer.h"
#include "store/group_call.h"

namespace scaletrain {
namespace {

// The update comes behind the last backward and the norm of all gradients, so that its transfers are beside nothing
// else, and before the next forward. Pieces come and go at the same time, but for the last one.
void add_update(RunTime& time, const PlanFacts& facts) {
  for (const StageFacts& stage : facts.stages) {
    const UpdatePass update = update_pass_of(facts.phase, stage.stage);
    if (update.each_way + update.piece > time.update.each_way + time.update.piece) time.update = update;
  }
  const double link = facts.options.budget->host_link;
  if (link > 0) time.update_seconds = static_cast<double>(time.update.each_way + time.update.piece) / link;
}

// What the stages compute in the run, by the operations of a step that has the largest batch. Steps of a ramp make
// fewer micro-batches, each as long whether its places are filled or not, and a pipeline is filled and emptied in each.
double flops_of_run(const PlanFacts& facts, double bubble) {
  const RunWork& work = facts.work_of_run;
  const TrainConfig& train = facts.config.train;
  if (!train.batch_ramp) return work.flops;
  const PhasePlan& phase = facts.phase;
  const auto whole = static_cast<double>(phase.num_micro_batches);
  const double idle = whole * bubble / (1.0 - bubble);
  double turns = 0;
  for (const BatchStretch& stretch : batch_stretches(train, 0, static_cast<std::int64_t>(work.steps)))
    turns += static_cast<double>(stretch.steps) * (static_cast<double>(phase.micro_batches_of(stretch.batch)) + idle);
  return work.flops / work.samples * static_cast<double>(phase.global_batch) * turns / (whole + idle);
}

double product_seconds(const PlanFacts& facts, double rate_of_rank) {
  const PhasePlan& phase = facts.phase;
  const auto optimizer = make_optimizer(phase.optimizer);
  if (optimizer->product_flops(phase.table, phase.layout(Rank(0)), phase.store_options()) <= 0) return 0;
  // A step waits for the rank whose shards meet the largest matrices: of so many of them, which repeat from block to
  // block.
  constexpr std::int64_t most_looked_at = 64;
  double most = 0;
  for (const StageFacts& stage : facts.stages)
    for (std::int64_t data = 0; data < std::min(phase.mesh.shards(), most_looked_at); ++data) {
      const ShardLayout layout = phase.layout(phase.mesh.rank_of({.data = data, .pipeline = stage.stage}));
      most = std::max(most, optimizer->product_flops(phase.table, layout, phase.store_options()));
    }
  return most / rate_of_rank;
}

}  // namespace

double added_by_halves(const PhasePlan& phase, double bubble) {
  if (!phase.gradient_noise || phase.global_batch < 2) return 0.0;
  const auto whole = static_cast<double>(phase.num_micro_batches);
  const double idle = whole * bubble / (1.0 - bubble);
  double halves = 2.0 * idle;
  for (const std::int64_t samples : halves_of(phase.global_batch))
    halves += static_cast<double>(phase.micro_batches_of(samples));
  return halves / (whole + idle) - 1.0;
}

UpdatePass update_pass_of(const PhasePlan& phase, std::int64_t stage) {
  return update_pass(phase.table, phase.layout(phase.mesh.rank_of({.pipeline = stage})), phase.store_options());
}

std::optional<RunTime> run_time(const PlanFacts& facts) {
  const auto& budget = facts.options.budget;
  if (!budget || budget->peak_flops <= 0 || facts.work_of_run.steps <= 0) return std::nullopt;
  const std::int64_t world = facts.phase.mesh.world();
  RunTime time;
  const std::int64_t sharers =
      place_on_hosts(facts.config, facts.phase.mesh, facts.options.all_on_one_host).ranks_per_host;
  time.devices = budget->kind == MemoryBudget::Kind::device ? world : ceil_div(world, sharers);
  const double rate = assumed_share_of_peak * budget->peak_flops * static_cast<double>(time.devices);
  time.recomputed = facts.work.recomputed;
  if (budget->kind == MemoryBudget::Kind::device) time.bubble = facts.replay.bubble;
  if (facts.phase.offload) add_update(time, facts);
  if (const auto& noise = facts.phase.gradient_noise)
    time.halves = added_by_halves(facts.phase, time.bubble) / static_cast<double>(noise->every);
  time.product_seconds = product_seconds(facts, rate / static_cast<double>(world));
  time.seconds =
      flops_of_run(facts, time.bubble) * (1 + time.recomputed) * (1 + time.halves) / (rate * (1 - time.bubble)) +
      facts.work_of_run.steps * (time.update_seconds + time.product_seconds);
  time.step_seconds = time.seconds / facts.work_of_run.steps;
  time.tokens_per_second = facts.work_of_run.tokens / time.seconds;
  return time;
}

}  // namespace scaletrain
