// What an optimizer slot is called among a checkpoint's tensors.
#pragma once

#include <string>

namespace scaletrain {

inline std::string slot_tensor_name(const std::string& row, const std::string& slot) {
  return row + "/" + slot;
}

}  // namespace scaletrain
