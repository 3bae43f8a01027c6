// How long ranks may have to wait for each other, in pieces of work: what deadlines are made of.
#pragma once

#include <cstdint>

#include "plan/run_plan.h"

namespace scaletrain {

// An evaluation part is what an evaluation does between two sums over the world. This is how many micro-batches of a
// replica it takes at most: enough that a pipeline's filling and draining, if a part has to wait for the one before,
// costs little.
std::int64_t longest_evaluation_part(const PhasePlan& plan);

// Pieces that others may have to finish, one after the other, before what any rank waits for can come. A piece is a
// pass of one micro-batch through one of a stage's units (embedding, layer, head; forward, or one of the two halves of
// the backward; with train.recompute one more), or the update of one tensor. All ranks meet once a step and once an
// evaluation part, so it is the longest path through either: the stage with the most units does every micro-batch's,
// and each other stage one's, to fill the pipeline; then all of a rank's tensors.
//
// An upper bound, whatever the schedule; a stage of 60 layers between others waits for many pieces, and none of them
// is late. Pure and cheap: no schedule is made for it.
std::int64_t longest_wait(const PhasePlan& plan);

}  // namespace scaletrain
