// Which keys of train.optimizer an optimizer reads, and what it cannot be asked for. One table of all of them.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "config/config.h"

namespace scaletrain {

// A key that the config's optimizer does not read.
struct IdleOptimizerKey {
  std::string path;
  std::string reason;
  bool is_default = true;       // the value is the one that it has where nobody gives one
  std::function<void()> reset;  // to that value
};
// The config must outlive them.
std::vector<IdleOptimizerKey> idle_optimizer_keys(OptimizerConfig& optimizer);

// What is refused, with the keys that it is about.
struct OptimizerProblem {
  std::array<std::string, 2> keys;
  std::string reason;
};
std::vector<OptimizerProblem> optimizer_problems(const OptimizerConfig& optimizer);
// Whether it remembers the direction of the last step. A resume may not change that: its checkpoint has the tensors of
// the one or the other.
bool keeps_momentum(const OptimizerConfig& optimizer);
// Whether offload: host could be asked for, and is not yet.
bool may_offload(const Config& config);
// Whether state: int8 could be asked for, and is not yet.
bool may_hold_moments_in_8_bits(const Config& config);

}  // namespace scaletrain
