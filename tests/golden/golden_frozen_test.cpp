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

// Bias correction that counted the model's updates would be off by what 1 - 0.95^1 is less than 1 - 0.95^7.
TEST_CASE("golden_twenty_adamw_steps_in_which_parameters_join_agree_with_pytorch") {
  for (const std::string& model : models_with_frozen) {
    CAPTURE(model);
    check_training(model, make_reference_backend(DType::f64), in_f64, with_unfrozen);
    check_training(model, make_reference_backend(DType::f32), in_f32, with_unfrozen);
    check_training(model, make_cpu_backend({.threads = 2, .compute = DType::f32}), in_f32, with_unfrozen);
  }
}

TEST_CASE("golden_twenty_adafactor_steps_in_which_parameters_join_agree_with_pytorch") {
  const std::string model = "llama_untied";
  check_training(model, make_reference_backend(DType::f64), in_f64, with_unfrozen_by_adafactor);
  check_training(model, make_reference_backend(DType::f32), in_f32, with_unfrozen_by_adafactor);
  check_training(model, make_cpu_backend({.threads = 2, .compute = DType::f32}), in_f32, with_unfrozen_by_adafactor);
}

}  // namespace scaletrain
