// The sum of squares of the gradient, over every element of the model once: each data rank counts the pieces that the
// layout gives it, whatever the ZeRO stage; rows that several tensor ranks hold count on the first holder only, another
// stage's copy of a tied tensor not at all.
//
// The gradients are those in the store: summed over micro-batches and replicas, times the plan's constant (see
// step_block.h).
#pragma once

#include "backend/backend.h"
#include "parallel/groups.h"
#include "parallel/param_store.h"

namespace scaletrain {

// This rank's share, accumulated in double range by range in the table's order: the same bits for any number of
// threads. Blocks until the stream has run.
double gradient_sum_of_squares_share(Backend& backend, Stream& stream, const ParamStore& store);

// The share summed over all ranks of the mesh. A rank without parameters takes part with zero.
double gradient_sum_of_squares(Backend& backend, Stream& stream, const ParamStore& store, const RankGroups& groups);

}  // namespace scaletrain
