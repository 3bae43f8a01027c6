// The sum of squares of the gradient, over every element of the model once: each data rank counts the pieces that the
// layout gives it, whatever the ZeRO stage; parameters that several tensor ranks hold count on the first of them only,
// another stage's copy of a tied tensor not at all.
//
// The gradients are those in the store: summed over micro-batches and replicas, times the plan's constant (see
// step_scalars.h).
#pragma once

#include "backend/backend.h"
#include "store/param_store.h"

namespace scaletrain {

// This rank's share, accumulated in double range by range in the table's order: the same bits for any number of
// threads. Blocks until the stream has run.
// Zero on a rank without parameters. Who wants the norm sums it over all ranks (sum_over_world).
double gradient_sum_of_squares_share(Backend& backend, Stream& stream, const ParamStore& store);

}  // namespace scaletrain
