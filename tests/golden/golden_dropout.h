// Dropout, held against PyTorch in float64 with masks that its script makes by itself (make_dropout.py).
#pragma once

#include "golden_lora.h"

namespace scaletrain {

// make_dropout.py has the same.
inline constexpr DropoutSpec golden_dropout{.embedding = 0.15, .attention = 0.2, .residual = 0.1};
inline constexpr double golden_adapter_dropout = 0.25;

inline void check_dropout(const LoraModel& model, bool with_adapters, std::unique_ptr<Backend> backend,
                          const Tolerances& tolerances, RecomputeKind recompute = RecomputeKind::none) {
  CAPTURE(model.model);
  CAPTURE(with_adapters);
  GoldenCase of = with_adapters ? model.with_adapters : GoldenCase();
  of.dropout = golden_dropout;
  if (with_adapters) of.lora->dropout = golden_adapter_dropout;
  Golden golden(model.model, std::move(backend), {}, of, recompute);
  const Expected dropout(golden.folder / (with_adapters ? "dropout_lora.safetensors" : "dropout.safetensors"));
  ModelRunner& runner = golden.runner;
  runner.seed = 1234;
  runner.samples = {3, 17, (std::int64_t{1} << 33) + 1, 1000};
  const auto ids = golden.part(golden.ids, 0, batch_shape.rows());
  const auto targets = golden.part(golden.targets, 0, batch_shape.rows());
  const auto tokens = static_cast<double>(golden.num_tokens(0));
  const double expected_loss = dropout.values<double>("loss").at(0);
  CHECK(std::abs(runner.train(batch_shape, ids, targets, 1.0 / tokens) / tokens - expected_loss) <= tolerances.loss);
  const std::vector<HuggingFaceTensor> adapters = peft_tensors(runner.table);
  const std::vector<HuggingFaceTensor> tensors = adapters.empty() ? hugging_face_tensors(runner.table) : adapters;
  double of_all = 0;
  for (const HuggingFaceTensor& tensor : tensors)
    of_all += std::pow(norm(dropout.values<double>("gradient/" + tensor.name)), 2);
  CHECK(tensors.size() == dropout.num_gradients());
  for (const HuggingFaceTensor& tensor : tensors) {
    CAPTURE(tensor.name);
    const auto expected = dropout.values<double>("gradient/" + tensor.name);
    auto difference = gradient_in_file_layout(runner, tensor);
    REQUIRE(difference.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) difference[i] -= expected[i];
    CHECK(norm(difference) <= tolerances.gradient * std::max(norm(expected), 1e-6 * std::sqrt(of_all)));
  }
  // An evaluation drops nothing: the loss is that of the model without dropout.
  const double without = golden.expected.values<double>("losses").at(0);
  CHECK(std::abs(runner.evaluate(batch_shape, ids, targets) / tokens - without) <= tolerances.loss);
}

// One like GPT-2 and one like Llama.
inline std::vector<LoraModel> models_with_dropout() {
  return {models_with_lora.begin(), models_with_lora.begin() + 2};
}

}  // namespace scaletrain
