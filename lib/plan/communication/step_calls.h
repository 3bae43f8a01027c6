// What a rank asks of its groups in optimizer steps, evaluations and loads, call by call, in the order in which it
// issues them: the plan's one total order over all groups. All ranks of a group issue the group's collectives in the
// same order, and the orders of all ranks together have no cycle.
//
// One walk over the rank's instructions, in the executor's order (parallel/schedule/execution.h), collects what the
// units and the store declare (Transformer::calls, store/store_calls.h). All that a plan says of communication is taken
// from it: order, volumes, gathers, staging. Tests hold it against what ranks really issue.
//
// Not among them, since no plan decides them: sums of one number over all ranks by which they count their GPUs and
// agree on a peak at the start, and wait for each other at the end (sum_over_world).
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "plan/run_plan.h"
#include "store/group_call.h"

namespace scaletrain {

struct PlannedCall : GroupCall {
  std::int64_t sent = 0;  // elements that this rank sends
  int group_size = 1;
  int group_rank = 0;  // this rank's index in the group
  bool operator==(const PlannedCall&) const = default;
};

// "data reduce_scatter 512 F32 gradients", "pipeline send 1 384 F32 activations".
std::string to_text(const PlannedCall& call);

// A piece of work makes the same calls whenever it begins with the same weights in staging, and what is in staging
// repeats itself: few pieces differ, however many micro-batches there are.
struct StepCalls {
  struct Piece {
    std::vector<PlannedCall> calls;  // at least one
    std::int64_t times = 0;
  };
  std::vector<Piece> pieces;
  std::vector<int> order;  // indices into pieces
};

// For a step that begins right behind an update, as every step does, and that is not skipped. order: of the rank's
// instructions.
StepCalls calls_of_step(const PhasePlan& plan, Rank rank, const ExecutionOrder& order);
// In the order of the executor's.
StepCalls calls_of_step(const PhasePlan& plan, Rank rank);

void visit_calls(const StepCalls& calls, const std::function<void(const PlannedCall&)>& visit);
std::vector<PlannedCall> collective_order(const PhasePlan& plan, Rank rank);

// What a rank does at a time: an optimizer step, the evaluation of a set, that of a task, whose samples each have a
// loss of their own, or a load, which gives all masters new values: initial ones, or those of a checkpoint at a resume
// or a rollback.
struct RankWork {
  enum class Kind { step, evaluation, evaluation_by_sample, load };
  Kind kind = Kind::step;
  std::int64_t evaluated = 0;  // micro-batches of each replica, in an evaluation of either kind
  // Made before a step: finetune.unfreeze decides by it what trains. All there can be: everything that ever does.
  std::int64_t updates = std::numeric_limits<std::int64_t>::max();
  bool in_halves = false;  // a step that measures the noise of the gradient
  // The ranks ask each other before each part (longest_evaluation_part) whether to go on.
  bool may_be_given_up = false;
};
// The calls of several in turn, from an update or a load on: what one has gathered the next need not.
std::vector<PlannedCall> collective_order(const PhasePlan& plan, Rank rank, std::span<const RankWork> work);

}  // namespace scaletrain
