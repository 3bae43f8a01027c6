// Numbers of a test where a backend of the host's processor reads and writes them.
#pragma once

#include "backend/operations.h"

namespace scaletrain {

inline View number_at(double& number) {
  return {&number, DType::f64, {1}};
}

inline ConstView record_of(const StepScalars& step) {
  return {&step, DType::f64, {num_step_scalars}};
}

}  // namespace scaletrain
