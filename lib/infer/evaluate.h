// The loss of a model on a validation set: the mean over its unmasked tokens.
#pragma once

#include <cstdint>
#include <functional>

#include "data/dataset.h"
#include "infer/model.h"

namespace scaletrain {

struct EvaluationResult {
  double loss = 0.0;        // nats per token
  std::int64_t tokens = 0;  // unmasked targets
};

// num_samples: the first so many of the set, at least one; the model's context is the set's. `progress` is called with
// (done, all) before the first micro-batch and after each. micro_batch is clamped to the samples there are.
EvaluationResult evaluate_model(LoadedModel& model, const ValidationSet& set, std::int64_t num_samples,
                                std::int64_t micro_batch,
                                const std::function<void(std::int64_t done, std::int64_t all)>& progress);

}  // namespace scaletrain
