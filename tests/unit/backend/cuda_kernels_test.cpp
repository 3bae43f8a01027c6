// The kernels of GPUs, executed by the host's processor, against the f64 reference; and what executes them, which must
// notice what a GPU would not forgive.
#include <doctest/doctest.h>

#include <optional>

#include "backend/cuda_module.h"
#include "base/error.h"
#include "cases.h"
#include "support/cuda/kernels_on_host.h"
#include "support/cuda/reachable_backend.h"
#include "support/sanitizers.h"

using namespace scaletrain;
using namespace scaletrain::parity;

namespace {

// Every operation in every type, on a GPU by way of its module; of the cases every `step`-th.
void check_parity_of_gpu(const CudaModule& module, std::size_t step) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    ReachableBackend backend(module.make_backend({.compute = type}));
    for (const CasesOfOperation& operation : all_cases()) {
      const std::vector<Case> all = operation.cases();
      std::vector<Case> cases;
      for (std::size_t i = 0; i < all.size(); i += step) cases.push_back(all[i]);
      check_parity_of(backend, operation.name, cases);
    }
  }
}

}  // namespace

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

// What compares a GPU's numbers works where there is none: by few cases, since the kernels themselves are tested above.
TEST_CASE("a_module_s_gpu_agrees_with_the_f64_reference_over_its_streams_and_memory") {
  check_parity_of_gpu(CudaModule(FAKE_MODULE), is_sanitized ? 400 : 40);
}

TEST_CASE("the_gpu_of_this_machine_agrees_with_the_f64_reference") {
  std::optional<CudaModule> module;
  try {
    module.emplace(cuda_module_path());
  } catch (const NoGpuError& error) {
    MESSAGE("skipped: " << std::string(error.what()));
    return;
  }
  check_parity_of_gpu(*module, 1);
}
