// The kernels of GPUs, executed by the host's processor, against the f64 reference; and what executes them, which must
// notice what a GPU would not forgive.
#include <doctest/doctest.h>

#include "cases.h"
#include "support/cuda/kernels_on_host.h"
#include "support/sanitizers.h"

using namespace scaletrain;
using namespace scaletrain::parity;

TEST_CASE("kernels_of_gpus_agree_with_the_f64_reference") {
  // A kernel's types differ in how elements are loaded and stored; under sanitizers each type has every third case.
  const DType types[] = {DType::f32, DType::bf16, DType::f16};
  for (std::size_t type = 0; type < 3; ++type) {
    const auto backend = make_kernels_on_host(types[type]);
    for (const CasesOfOperation& operation : all_cases()) {
      const std::vector<Case> all = operation.cases();
      std::vector<Case> cases;
      for (std::size_t i = 0; i < all.size(); ++i)
        if (!is_sanitized || i % 3 == type) cases.push_back(all[i]);
      check_parity_of(*backend, operation.name, cases);
    }
  }
}
