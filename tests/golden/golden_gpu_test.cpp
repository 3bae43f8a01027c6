// The golden models on a GPU: one that the host carries out, or that of this machine (gpu_under_test.h).
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "golden_average.h"
#include "golden_documents.h"
#include "golden_dropout.h"
#include "golden_frozen.h"
#include "golden_lora.h"
#include "golden_models.h"
#include "golden_optimizers.h"
#include "golden_shaped.h"
#include "support/cuda/gpu_under_test.h"

namespace scaletrain {

TEST_CASE("golden_loss_and_gradients_agree_with_pytorch_on_a_gpu") {
  if (is_gpu_missing()) return;
  for (const std::string& model : golden_models) {
    CAPTURE(model);
    check_loss_and_gradients(Golden(model, make_gpu(DType::f32), {}), in_f32);
  }
}

TEST_CASE("golden_loss_and_gradients_within_documents_agree_with_pytorch_on_a_gpu") {
  if (is_gpu_missing()) return;
  for (const std::string& model : models_with_documents) check_documents(model, make_gpu(DType::f32), in_f32);
}

TEST_CASE("golden_loss_and_gradients_with_dropout_agree_with_pytorch_that_has_the_same_masks_on_a_gpu") {
  if (is_gpu_missing()) return;
  for (const LoraModel& model : models_with_dropout())
    for (const bool with_adapters : {false, true})
      check_dropout(model, with_adapters, make_gpu(DType::f32), in_f32, RecomputeKind::selective);
}

TEST_CASE("golden_twenty_adamw_steps_agree_with_pytorch_on_a_gpu") {
  if (is_gpu_missing()) return;
  for (const std::string& model : golden_models) {
    CAPTURE(model);
    check_training(model, make_gpu(DType::f32), in_f32);
  }
}

TEST_CASE("golden_twenty_adamw_steps_with_a_shaped_loss_agree_with_pytorch_on_a_gpu") {
  if (is_gpu_missing()) return;
  for (const std::string& model : models_with_shape) {
    CAPTURE(model);
    check_training(model, make_gpu(DType::f32), in_f32, with_shape);
  }
}

TEST_CASE("golden_averages_of_weights_agree_with_pytorch_on_a_gpu") {
  if (is_gpu_missing()) return;
  check_averages("llama_untied", make_gpu(DType::f32), 1e-6);
}

TEST_CASE("golden_twenty_adamw_steps_with_frozen_parameters_agree_with_pytorch_on_a_gpu") {
  if (is_gpu_missing()) return;
  for (const std::string& model : models_with_frozen) {
    CAPTURE(model);
    check_training(model, make_gpu(DType::f32), in_f32, with_frozen);
    check_training(model, make_gpu(DType::f32), in_f32, with_unfrozen);
  }
}

TEST_CASE("golden_twenty_steps_of_every_optimizer_agree_with_pytorch_and_the_papers_on_a_gpu") {
  if (is_gpu_missing()) return;
  for (const std::string& model : models_with_optimizers) {
    for (const GoldenCase& of : golden_optimizers) {
      CAPTURE(model);
      CAPTURE(of.prefix);
      check_training(model, make_gpu(DType::f32), in_f32, of);
    }
  }
}

TEST_CASE("golden_twenty_steps_with_weight_decays_of_tensors_agree_with_pytorch_and_the_papers_on_a_gpu") {
  if (is_gpu_missing()) return;
  for (const std::string& model : models_with_optimizers) {
    for (const GoldenCase& of : golden_weight_decays(model)) {
      CAPTURE(model);
      CAPTURE(of.prefix);
      check_training(model, make_gpu(DType::f32), in_f32, of);
    }
  }
}

TEST_CASE("golden_gradients_and_twenty_adamw_steps_of_adapters_agree_with_peft_on_a_gpu") {
  if (is_gpu_missing()) return;
  for (const LoraModel& model : models_with_lora) {
    CAPTURE(model.model);
    check_loss_and_gradients(Golden(model.model, make_gpu(DType::f32), {}, model.with_adapters), in_f32);
    check_training(model.model, make_gpu(DType::f32), in_f32, model.with_adapters);
  }
}

// A GPU is held as processors are that multiply halves as floats: three orders of sums, its own, that of portable code
// and the reference's, and one standard error. Of its own alone, whose 60 losses are more a matter of chance, two.
TEST_CASE("golden_losses_in_halves_on_a_gpu_are_no_further_from_float64_than_those_of_pytorch_autocast") {
  if (is_gpu_missing()) return;
  for (const Half& half : halves) {
    const MakeBackend gpu = [&] { return make_gpu(half.type); };
    const MakeBackend portable = [&] {
      return make_cpu_backend({.threads = 2, .instruction_set = "portable", .compute = half.type});
    };
    const MakeBackend reference = [&] { return make_reference_backend(half.type); };
    const std::vector<ModelErrors> errors = errors_of_losses(half, {gpu, portable, reference});
    check_losses_against_autocast(half, errors, standard_errors(1));
    check_losses_against_autocast(half, {errors.front()}, standard_errors(2));
  }
}

TEST_CASE("golden_gradients_in_halves_on_a_gpu_are_as_near_as_their_roundings_allow") {
  if (is_gpu_missing()) return;
  check_gradients_in_halves([](DType compute) { return make_gpu(compute); });
}

}  // namespace scaletrain
