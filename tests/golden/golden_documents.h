// Attention within documents, held against PyTorch in float64, where each document went through the model by itself
// (make_documents.py).
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "golden_models.h"

namespace scaletrain {

inline void check_documents(const std::string& model, std::unique_ptr<Backend> backend, const Tolerances& tolerances) {
  CAPTURE(model);
  Golden golden(model, std::move(backend), {});
  const Expected documents(golden.folder / "documents.safetensors");
  ModelRunner& runner = golden.runner;
  const auto ids = golden.part(golden.ids, 0, batch_shape.rows());
  const auto targets = golden.part(golden.targets, 0, batch_shape.rows());
  const auto starts = documents.values<std::int32_t>("document_start");
  const auto tokens = static_cast<double>(golden.num_tokens(0));
  const double expected_loss = documents.values<double>("loss").at(0);
  CHECK(std::abs(runner.evaluate(batch_shape, ids, targets, starts) / tokens - expected_loss) <= tolerances.loss);
  CHECK(std::abs(runner.train(batch_shape, ids, targets, 1.0 / tokens, starts) / tokens - expected_loss) <=
        tolerances.loss);
  double of_all = 0;
  for (const HuggingFaceTensor& tensor : hugging_face_tensors(runner.table))
    of_all += std::pow(norm(documents.values<double>("gradient/" + tensor.name)), 2);
  for (const HuggingFaceTensor& tensor : hugging_face_tensors(runner.table)) {
    CAPTURE(tensor.name);
    const auto expected = documents.values<double>("gradient/" + tensor.name);
    auto difference = gradient_in_file_layout(runner, tensor);
    REQUIRE(difference.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) difference[i] -= expected[i];
    CHECK(norm(difference) <= tolerances.gradient * std::max(norm(expected), 1e-6 * std::sqrt(of_all)));
  }
}

inline const std::vector<std::string> models_with_documents = {"gpt2", "llama_untied"};

}  // namespace scaletrain
