// The kernels of GPUs, executed by the host's processor, against the f64 reference; and what executes them, which must
// notice what a GPU would not forgive.
#include <doctest/doctest.h>

#include "cases.h"
#include "support/cuda/kernels_on_host.h"
#include "support/sanitizers.h"

using namespace scaletrain;
using namespace scaletrain::parity;

TEST_CASE("kernels_of_gpus_agree_with_the_f64_reference") {
  struct Kernel {
    const char* operation;
    std::vector<Case> (*cases)();
  };
  const Kernel kernels[] = {{"norm_forward", norm_forward_cases},
                            {"norm_backward_input", norm_backward_input_cases},
                            {"norm_backward_weight", norm_backward_weight_cases},
                            {"activation_forward", activation_forward_cases},
                            {"activation_backward", activation_backward_cases},
                            {"rope", rope_cases},
                            {"embedding_forward", embedding_forward_cases},
                            {"embedding_backward", embedding_backward_cases},
                            {"embedding_part_forward", embedding_part_forward_cases},
                            {"embedding_part_backward", embedding_part_backward_cases},
                            {"cross_entropy", cross_entropy_cases},
                            {"softmax_statistics", softmax_statistics_cases},
                            {"cross_entropy_parts", cross_entropy_parts_cases},
                            {"add", add_cases},
                            {"copy", copy_cases},
                            {"fill", fill_cases},
                            {"sum_of_squares", sum_of_squares_cases},
                            {"adamw", adamw_cases},
                            {"sgd", sgd_cases}};
  // A kernel's types differ in how elements are loaded and stored; under sanitizers each type has every third case.
  const DType types[] = {DType::f32, DType::bf16, DType::f16};
  for (std::size_t type = 0; type < 3; ++type) {
    const auto backend = make_kernels_on_host(types[type]);
    for (const Kernel& kernel : kernels) {
      const std::vector<Case> all = kernel.cases();
      std::vector<Case> cases;
      for (std::size_t i = 0; i < all.size(); ++i)
        if (!is_sanitized || i % 3 == type) cases.push_back(all[i]);
      check_parity_of(*backend, kernel.operation, cases);
    }
  }
}
