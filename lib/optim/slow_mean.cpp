#include "optim/slow_mean.h"

#include <algorithm>
#include <cmath>

namespace scaletrain {

SlowMean slow_mean_at(const OptimizerConfig& config, std::int64_t update, std::int64_t warmup) {
  if (config.type != OptimizerKind::ademamix) return {};
  if (update >= warmup) return {.beta = config.beta3, .weight = config.alpha};
  const double part = static_cast<double>(update) / static_cast<double>(warmup);
  const double weight = config.alpha * part;
  // Without a mean to begin with, or with none to come to, there is no half-life that grows.
  if (config.beta1 <= 0 || config.beta3 <= 0) return {.beta = config.beta3, .weight = weight};
  const double from = std::log(config.beta1);
  const double to = std::log(config.beta3);
  const double beta = std::exp(from * to / ((1 - part) * to + part * from));
  return {.beta = std::min(beta, config.beta3), .weight = weight};
}

}  // namespace scaletrain
