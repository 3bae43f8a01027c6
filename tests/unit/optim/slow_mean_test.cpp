#include "optim/slow_mean.h"
#include "support/near.h"

#include <doctest/doctest.h>

#include <cmath>

using namespace scaletrain;

TEST_CASE("the half-life of AdEMAMix's slow mean and its weight grow linearly over the warm-up, and then stay") {
  OptimizerConfig config{.type = OptimizerKind::ademamix, .beta1 = 0.9};
  config.alpha = 6.0;
  config.beta3 = 0.999;
  const auto half_life = [](double beta) { return std::log(0.5) / std::log(beta); };
  for (const int update : {1, 3, 10}) {
    const SlowMean mean = slow_mean_at(config, update, 12);
    CHECK(mean.weight == Near(6.0 * update / 12));
    const double expected = half_life(0.9) + (half_life(0.999) - half_life(0.9)) * update / 12;
    CHECK(half_life(mean.beta) == Near(expected).epsilon(1e-9));
  }
  for (const int update : {12, 13, 1000}) {
    CHECK(slow_mean_at(config, update, 12).weight == 6.0);
    CHECK(slow_mean_at(config, update, 12).beta == 0.999);
  }
  CHECK(slow_mean_at(config, 1, 0).beta == 0.999);
  // Never beyond what is asked for, and a number whatever the betas are.
  config.beta3 = 0.5;
  CHECK(slow_mean_at(config, 1, 12).beta == 0.5);
  config.beta1 = 0.0;
  CHECK(slow_mean_at(config, 1, 12).beta == 0.5);
  config.type = OptimizerKind::adamw;
  CHECK(slow_mean_at(config, 1, 12).weight == 0.0);
}
