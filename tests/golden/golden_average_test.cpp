// The average of the weights on the processors' backends.
#include "golden_average.h"

#include <doctest/doctest.h>

namespace scaletrain {

TEST_CASE("golden_averages_of_weights_agree_with_pytorch") {
  check_averages("llama_untied", make_reference_backend(DType::f64), 1e-12);
  check_averages("llama_untied", make_reference_backend(DType::f32), 1e-6);
  check_averages("llama_untied", make_cpu_backend({.threads = 2, .compute = DType::f32}), 1e-6);
}

}  // namespace scaletrain
