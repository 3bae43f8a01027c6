// The batch of a run whose train.global_batch is auto: it follows the gradient noise scale (gradient_noise.h), at which
// McCandlish et al. 2018 (arXiv 1812.06162, section 2) find the balance between time and samples: a batch of the noise
// scale needs about twice the fewest steps, and twice the fewest samples. Pure.
//
// Sizes are batch_auto.min doubled some times, up to batch_auto.max. After every batch_auto.every steps the batch is
//   doubled where the noise scale is at least twice the batch: the doubled one is not above it yet;
//   halved where it is below half of the batch: the halved one is still above it,
// and left else. Between the two the scale may move by a factor of four, so that its own noise does not move the batch
// to and fro. A scale that is not known leaves it.
#pragma once

#include <cstdint>
#include <optional>

#include "config/config.h"

namespace scaletrain {

// What a run goes on with: `min` where it begins; where the bounds are others than before, the largest size among
// theirs that is not above it, or `min`. Nothing where the batch is not auto.
std::optional<std::int64_t> continue_batch(const std::optional<std::int64_t>& before, const TrainConfig& config);

// Of the steps that follow `step` ones made with `batch`, which is one of the sizes.
std::int64_t adapted_batch(const BatchAutoConfig& config, std::int64_t step, std::int64_t batch,
                           const std::optional<double>& noise_scale);

}  // namespace scaletrain
