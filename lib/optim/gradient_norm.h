// The sum of squares of the gradient, over every element of the model once: each data rank counts the pieces that the
// layout gives it, whatever the ZeRO stage; parameters that several tensor ranks hold count on the first of them only,
// another stage's copy of a tied tensor not at all.
//
// The gradients are those in the store: summed over micro-batches and replicas, times the plan's constant (see
// step_scalars.h).
#pragma once

#include <cstddef>
#include <vector>

#include "backend/backend.h"
#include "backend/mirrored_buffer.h"
#include "store/param_store.h"

namespace scaletrain {

// This rank's share: the sum in the table's order of the sums of each range, in double: the same bits for any number of
// threads. Zero on a rank without parameters. Who wants the norm sums it over all ranks (sum_over_world).
class GradientSquares {
 public:
  // Both must outlive it. results: how many may be on their way to the host at once.
  GradientSquares(Backend& backend, const ParamStore& store, int results = 1);

  // Issues the sums over the gradients that the stream then finds, and their way to the host: one of the results.
  void issue(Stream& stream, int result = 0);
  // When the stream has run that.
  double share(int result = 0) const;

 private:
  // What one operation sums: ranges of a flat buffer, as they lie in it.
  struct Counted {
    View gradients;
    std::vector<ElementSpan> spans;  // kernels that run later still read them
    std::size_t first_sum = 0;
  };
  GradientSquares(Backend& backend, const ParamStore& store, const std::vector<ParamRange>& ranges, int results);
  View sums_of(int result) const;

  Backend& backend_;
  std::vector<Counted> counted_;
  std::vector<std::size_t> table_order_;  // indices of sums
  MirroredBuffer sums_;                   // [results, ranges]
};

}  // namespace scaletrain
