// Training of adapters on the processors' backends.
#include "golden_lora.h"

#include <doctest/doctest.h>

#include <string>

namespace scaletrain {

namespace {

void check_lora(const LoraModel& model, RecomputeKind recompute, const Tolerances& tolerances,
                const std::function<std::unique_ptr<Backend>()>& make_backend) {
  check_loss_and_gradients(Golden(model.model, make_backend(), {}, model.with_adapters, recompute), tolerances);
}

}  // namespace

TEST_CASE("golden_loss_and_gradients_of_adapters_agree_with_peft") {
  for (const LoraModel& model : models_with_lora) {
    CAPTURE(model.model);
    for (const RecomputeKind recompute : {RecomputeKind::none, RecomputeKind::selective, RecomputeKind::full}) {
      CAPTURE(static_cast<int>(recompute));
      check_lora(model, recompute, in_f64, [] { return make_reference_backend(DType::f64); });
      check_lora(model, recompute, in_f32, [] { return make_cpu_backend({.threads = 2, .compute = DType::f32}); });
    }
  }
}

TEST_CASE("golden_twenty_adamw_steps_of_adapters_agree_with_peft") {
  for (const LoraModel& model : models_with_lora) {
    CAPTURE(model.model);
    check_training(model.model, make_reference_backend(DType::f64), in_f64, model.with_adapters);
    check_training(model.model, make_reference_backend(DType::f32), in_f32, model.with_adapters);
    check_training(model.model, make_cpu_backend({.threads = 2, .compute = DType::f32}), in_f32, model.with_adapters);
  }
}

}  // namespace scaletrain
