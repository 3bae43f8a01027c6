// The golden models on the processors' backends.
#include "golden_models.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/instruction_sets.h"
#include "support/ranks/fenced_backend.h"
#include "support/ranks/late_backend.h"

namespace scaletrain {
namespace {

std::unique_ptr<Backend> make_cpu(DType compute = DType::f32, const std::string& instruction_set = "auto") {
  return make_cpu_backend({.threads = 2, .instruction_set = instruction_set, .compute = compute});
}

// Whether halves are multiplied by AVX-512 bf16: asked of the processor and of what is chosen for it, so that no other
// text or table of ours loosens what it is held to. AMX makes sums of another order.
bool has_avx512_bf16_products([[maybe_unused]] DType half) {
#if defined(__x86_64__)
  return half == DType::bf16 && __builtin_cpu_supports("avx512bf16") &&
         cpu::choose_bf16("auto") != &cpu::bf16_panels_amx();
#else
  return false;
#endif
}

std::unique_ptr<Backend> late_and_fenced(DType compute = DType::f32) {
  return std::make_unique<LateBackend>(std::make_unique<FencedBackend>(make_cpu(compute)));
}

}  // namespace

// Bit for bit what the cpu makes where nothing is late and the host reaches everything: its own yardstick.
TEST_CASE("golden_models_train_the_same_bits_late_and_in_memory_beyond_the_hosts_reach") {
  for (const std::string& model : golden_models) {
    CAPTURE(model);
    check_loss_and_gradients(Golden(model, late_and_fenced(), {}), in_f32);
    check_training(model, late_and_fenced(), in_f32);
    const auto losses = [&](std::unique_ptr<Backend> backend) {
      Golden golden(model, std::move(backend), {});
      const auto ids = golden.part(golden.ids, 0, batch_shape.rows());
      const auto targets = golden.part(golden.targets, 0, batch_shape.rows());
      std::vector<double> numbers{golden.runner.evaluate(batch_shape, ids, targets)};
      numbers.push_back(golden.runner.train(batch_shape, ids, targets, 0.25));
      for (const HuggingFaceTensor& tensor : hugging_face_tensors(golden.runner.table)) {
        const std::vector<double> gradient = gradient_in_file_layout(golden.runner, tensor);
        numbers.insert(numbers.end(), gradient.begin(), gradient.end());
      }
      return numbers;
    };
    CHECK(losses(late_and_fenced()) == losses(make_cpu()));
    for (const Half& half : halves) {
      CAPTURE(half.name);
      CHECK(train_twenty_steps(model, late_and_fenced(half.type), half.loss_scale).losses ==
            train_twenty_steps(model, make_cpu(half.type), half.loss_scale).losses);
    }
  }
}

TEST_CASE("golden_loss_and_gradients_agree_with_pytorch_on_the_float64_reference") {
  for (const std::string& model : golden_models) {
    CAPTURE(model);
    check_loss_and_gradients(Golden(model, make_reference_backend(DType::f64), {}), in_f64);
  }
}

TEST_CASE("golden_loss_and_gradients_agree_with_pytorch_on_the_float32_reference") {
  for (const std::string& model : golden_models) {
    CAPTURE(model);
    check_loss_and_gradients(Golden(model, make_reference_backend(DType::f32), {}), in_f32);
  }
}

TEST_CASE("golden_loss_and_gradients_agree_with_pytorch_on_the_cpu") {
  for (const std::string& model : golden_models) {
    CAPTURE(model);
    check_loss_and_gradients(Golden(model, make_cpu(), {}), in_f32);
  }
}

TEST_CASE("golden_twenty_adamw_steps_agree_with_pytorch_on_the_float64_reference") {
  for (const std::string& model : golden_models) {
    CAPTURE(model);
    check_training(model, make_reference_backend(DType::f64), in_f64);
  }
}

TEST_CASE("golden_twenty_adamw_steps_agree_with_pytorch_on_the_float32_reference") {
  for (const std::string& model : golden_models) {
    CAPTURE(model);
    check_training(model, make_reference_backend(DType::f32), in_f32);
  }
}

TEST_CASE("golden_twenty_adamw_steps_agree_with_pytorch_on_the_cpu") {
  for (const std::string& model : golden_models) {
    CAPTURE(model);
    check_training(model, make_cpu(), in_f32);
  }
}

// float64 is the truth and PyTorch's autocast, which keeps more in float32 (the residual stream, norms), the yardstick:
// over all steps of all models, for of a few steps chance has the larger part. Products by AVX-512 bf16 are held to the
// letter. Where halves are multiplied as floats the order of sums is one of many, and each makes other roundings: the
// errors of three orders count, those of this processor, of portable code and of the reference. So that a worse kernel
// of this processor does not hide behind the other two, its own losses are held by themselves too: 60 of them, to two
// standard errors of such a comparison.
TEST_CASE("golden_losses_in_halves_are_no_further_from_float64_than_those_of_pytorch_autocast") {
  for (const Half& half : halves) {
    std::vector<MakeBackend> backends = {[&] { return make_cpu(half.type); }};
    const bool is_strict = has_avx512_bf16_products(half.type);
    if (is_strict) {
      REQUIRE(make_cpu(half.type)->packed_bytes({64, 64}) > 0);  // the backend does multiply panels
    } else {
      backends.emplace_back([&] { return make_cpu(half.type, "portable"); });
      backends.emplace_back([&] { return make_reference_backend(half.type); });
    }
    const std::vector<ModelErrors> errors = errors_of_losses(half, backends);
    check_losses_against_autocast(half, errors, is_strict ? 1.0 : standard_errors(1));
    if (!is_strict) check_losses_against_autocast(half, {errors.front()}, standard_errors(2));
  }
}

TEST_CASE("golden_gradients_in_halves_are_as_near_as_their_roundings_allow") {
  check_gradients_in_halves([](DType half) { return make_cpu(half); });
}

}  // namespace scaletrain
