// The loss on the validation sets during training: the mean over the unmasked tokens of the first so many samples of
// each set, the same samples every time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "train/stage_executor.h"

namespace scaletrain {

struct SetLoss {
  std::string dataset;
  double loss = 0.0;        // nats per token
  std::int64_t tokens = 0;  // unmasked
};

// max_samples: per set, 0: all. InputError if a set has no unmasked token.
std::vector<SetLoss> evaluate_sets(StageExecutor& executor, std::span<const std::unique_ptr<ValidationSet>> sets,
                                   std::int64_t max_samples, std::int64_t micro_batch);

}  // namespace scaletrain
