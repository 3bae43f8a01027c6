// Attention within documents on the processors' backends.
#include "golden_documents.h"

#include <doctest/doctest.h>

#include <string>

namespace scaletrain {

TEST_CASE("golden_loss_and_gradients_within_documents_agree_with_pytorch_that_sees_each_alone") {
  for (const std::string& model : models_with_documents) {
    check_documents(model, make_reference_backend(DType::f64), in_f64);
    check_documents(model, make_reference_backend(DType::f32), in_f32);
    check_documents(model, make_cpu_backend({.threads = 2, .compute = DType::f32}), in_f32);
  }
}

}  // namespace scaletrain
