// What an optimizer state is called among a checkpoint's tensors.
#pragma once

#include <string>

namespace scaletrain {

// The average that train.ema keeps.
inline const std::string average_state = "ema";

inline std::string state_tensor_name(const std::string& parameter, const std::string& state) {
  return parameter + "/" + state;
}

}  // namespace scaletrain
