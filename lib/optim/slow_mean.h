// What AdEMAMix's slow mean is at an update: its decay β3 and its weight α, which both grow over a warm-up of T updates
// (Pagliardini et al. 2024, equations of section 3). Pure.
//   α(t) = α · min(t/T, 1)
//   β3(t) = min(exp(ln β1 · ln β3 / ((1 - t/T)·ln β3 + (t/T)·ln β1)), β3): from β1, its half-life grows linearly
#pragma once

#include <cstdint>

#include "config/config.h"

namespace scaletrain {

struct SlowMean {
  double beta = 0;
  double weight = 0;
};

// update: counts from 1. warmup: T; 0: none. Zeros for other optimizers.
SlowMean slow_mean_at(const OptimizerConfig& config, std::int64_t update, std::int64_t warmup);

}  // namespace scaletrain
