// Training with frozen parameters on the processors' backends.
#include "golden_frozen.h"

#include <doctest/doctest.h>

#include <string>

namespace scaletrain {

TEST_CASE("golden_twenty_adamw_steps_with_frozen_parameters_agree_with_pytorch") {
  for (const std::string& model : models_with_frozen) {
    CAPTURE(model);
    check_training(model, make_reference_backend(DType::f64), in_f64, with_frozen);
    check_training(model, make_reference_backend(DType::f32), in_f32, with_frozen);
    check_training(model, make_cpu_backend({.threads = 2, .compute = DType::f32}), in_f32, with_frozen);
  }
}

}  // namespace scaletrain
