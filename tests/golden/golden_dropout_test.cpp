// Dropout on the processors' backends.
#include "golden_dropout.h"

#include <doctest/doctest.h>

namespace scaletrain {

TEST_CASE("golden_loss_and_gradients_with_dropout_agree_with_pytorch_that_has_the_same_masks") {
  for (const LoraModel& model : models_with_dropout()) {
    for (const bool with_adapters : {false, true}) {
      for (const RecomputeKind recompute : {RecomputeKind::none, RecomputeKind::selective, RecomputeKind::full})
        check_dropout(model, with_adapters, make_reference_backend(DType::f64), in_f64, recompute);
      check_dropout(model, with_adapters, make_reference_backend(DType::f32), in_f32);
      check_dropout(model, with_adapters, make_cpu_backend({.threads = 2, .compute = DType::f32}), in_f32);
      check_dropout(model, with_adapters, make_cpu_backend({.threads = 2, .instruction_set = "portable"}), in_f32);
    }
  }
}

}  // namespace scaletrain
