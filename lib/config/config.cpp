#include "config/config.h"

#include "base/error.h"

namespace scaletrain {

std::int64_t TrainConfig::num_steps(std::int64_t context) const {
  if (steps) return *steps;
  SCALETRAIN_CHECK(tokens.has_value());
  const std::int64_t tokens_per_step = global_batch * context;  // validation has ruled out an overflow
  SCALETRAIN_CHECK_LT(0, tokens_per_step);
  return *tokens / tokens_per_step + (*tokens % tokens_per_step == 0 ? 0 : 1);
}

}  // namespace scaletrain
