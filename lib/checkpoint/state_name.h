// What an optimizer state is called among a checkpoint's tensors.
#pragma once

#include <string>

namespace scaletrain {

// The average that train.ema keeps.
inline const std::string average_state = "ema";

// Behind the name of a state in 8 bits: its scales, one for each block of a row.
inline const std::string scales_suffix = ".scales";

// Behind the name of a state that a matrix has factors for: one for each row, one for each column.
inline const std::string row_factors_suffix = ".rows";
inline const std::string column_factors_suffix = ".columns";

inline std::string state_tensor_name(const std::string& parameter, const std::string& state) {
  return parameter + "/" + state;
}

}  // namespace scaletrain
