// The kernels of GPUs, executed by the host's processor, against the f64 reference; and what executes them, which must
// notice what a GPU would not forgive.
#include <doctest/doctest.h>

#include <memory>
#include <vector>

#include "backend/cuda_module.h"
#include "base/error.h"
#include "cases.h"
#include "support/cuda/kernels_on_host.h"
#include "support/cuda/module_of_machine.h"
#include "support/cuda/reachable_backend.h"
#include "support/sanitizers.h"

using namespace scaletrain;
using namespace scaletrain::parity;

namespace {

constexpr DType types[] = {DType::f32, DType::bf16, DType::f16};

// Of an operation's cases, which take long to make, each type has those that is_chosen(number of the type, of the
// case).
template <class Make, class Choose>
void check_parity_of_types(const Make& make, const Choose& is_chosen) {
  const std::unique_ptr<Backend> backends[] = {make(types[0]), make(types[1]), make(types[2])};
  for (const CasesOfOperation& operation : all_cases()) {
    const std::vector<Case> all = operation.cases();
    for (std::size_t type = 0; type < 3; ++type) {
      std::vector<Case> cases;
      for (std::size_t i = 0; i < all.size(); ++i)
        if (is_chosen(type, i)) cases.push_back(all[i]);
      check_parity_of(*backends[type], operation.name, cases);
    }
  }
}

// On a GPU by way of its module; of the cases every `step`-th.
void check_parity_of_gpu(const CudaModule& module, std::size_t step) {
  check_parity_of_types(
      [&](DType type) { return std::make_unique<ReachableBackend>(module.make_backend({.compute = type})); },
      [&](std::size_t, std::size_t i) { return i % step == 0; });
}

}  // namespace

TEST_CASE("kernels_of_gpus_agree_with_the_f64_reference") {
  // A kernel's types differ in how elements are loaded and stored, those of 16 bits in nothing else: fp16 has every
  // third case, and under sanitizers each type.
  check_parity_of_types(make_kernels_on_host, [](std::size_t type, std::size_t i) {
    return (!is_sanitized && types[type] != DType::f16) || i % 3 == type;
  });
}

TEST_CASE("kernels_of_gpus_leave_the_attention_that_a_library_has_kernels_for_to_it") {
  const std::vector<Case> all = attention_forward_cases();
  for (const DType type : {DType::bf16, DType::f16}) {
    const auto backend = make_kernels_with_library_on_host(type);
    const int before = attention_runs_of_library();
    // Of the last cases the first two are the library's, which has no kernels for the third.
    check_parity_of(*backend, "attention", {all.end() - 3, all.end()});
    constexpr int times = 2;  // that the suite runs every case
    CHECK(attention_runs_of_library() - before == times * 2);
    // Beyond the last key, with documents, of other strides, scaled to negative numbers: our own kernels'.
    std::vector<Case> others;
    for (std::size_t i = 0; i + 3 < all.size(); i += 4) others.push_back(all[i]);
    check_parity_of(*backend, "attention", others);
    CHECK(attention_runs_of_library() - before == times * 2);
  }
}

// What compares a GPU's numbers works where there is none: by few cases, since the kernels themselves are tested above.
TEST_CASE("a_module_s_gpu_agrees_with_the_f64_reference_over_its_streams_and_memory") {
  check_parity_of_gpu(CudaModule(FAKE_MODULE), is_sanitized ? 1000 : 100);
}

TEST_CASE("the_gpu_of_this_machine_agrees_with_the_f64_reference") {
  if (const auto module = module_of_machine()) check_parity_of_gpu(*module, 1);
}
