// How much the stages of a pipeline compute, in floating-point operations: what the replay of a schedule takes as time.
#pragma once

#include <vector>

#include "parallel/schedule/simulate.h"
#include "parallel/schedule/stage_split.h"
#include "plan/run_plan.h"

namespace scaletrain {

// Matrix products and attention only. A block's attention counts C·T multiply-adds per token forward (half the square,
// it is causal) and twice that in the input part of the backward; the embedding's lookups are free. The head's product
// with V·C belongs to the backward, where it is computed: three times, or four times where the backward is split (both
// parts need the logits). Of what is frozen there is no weight part, and no backward before the first unit that is ever
// trained. Sums to model_flops_per_token, but for norms, biases and that fourth product; and for what
// train.recompute full computes again in the input part: a block's forward without its last product. Selective computes
// no product again, and counts as nothing.
struct StageWork {
  std::vector<WorkCosts> chunks;  // by virtual stage, in units of the mean chunk's forward
  std::vector<double> stages;     // by pipeline stage, all of its chunks: in units of the mean stage
  double head_share = 0.0;        // of the last stage's work
  double recomputed = 0.0;        // what is computed again, relative to all other work
};
StageWork stage_work(const PhasePlan& phase);

// What the model's ends are of that work beside a block, the last one: for dividing the blocks of a plan that has no
// stages yet.
EndCosts end_costs(const PhasePlan& phase);
// The same of each block; empty where all are alike.
std::vector<double> block_costs(const PhasePlan& phase);

}  // namespace scaletrain
