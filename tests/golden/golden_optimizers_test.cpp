// Every optimizer on the processors' backends.
#include "golden_optimizers.h"

#include <doctest/doctest.h>

#include <string>

namespace scaletrain {

TEST_CASE("golden_twenty_steps_of_every_optimizer_agree_with_pytorch_and_the_papers") {
  for (const std::string& model : models_with_optimizers) {
    for (const GoldenCase& of : golden_optimizers) {
      CAPTURE(model);
      CAPTURE(of.prefix);
      check_training(model, make_reference_backend(DType::f64), in_f64, of);
      check_training(model, make_reference_backend(DType::f32), in_f32, of);
      check_training(model, make_cpu_backend({.threads = 2, .compute = DType::f32}), in_f32, of);
    }
  }
}

TEST_CASE("golden_twenty_steps_with_weight_decays_of_tensors_agree_with_pytorch_and_the_papers") {
  for (const std::string& model : models_with_optimizers) {
    for (const GoldenCase& of : golden_weight_decays(model)) {
      CAPTURE(model);
      CAPTURE(of.prefix);
      check_training(model, make_reference_backend(DType::f64), in_f64, of);
      check_training(model, make_cpu_backend({.threads = 2, .compute = DType::f32}), in_f32, of);
    }
  }
}

}  // namespace scaletrain
