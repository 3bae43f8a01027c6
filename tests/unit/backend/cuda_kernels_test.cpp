// The kernels of GPUs, executed by the host's processor, against the f64 reference; and what executes them, which must
// notice what a GPU would not forgive.
#include <doctest/doctest.h>

#include <memory>
#include <string_view>
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

constexpr CudaOptions ways[] = {
    {.compute = DType::f32}, {.compute = DType::bf16}, {.compute = DType::f16}, {.compute = DType::f32, .tf32 = true}};

// Of an operation's cases, which take long to make, each way to compute has those that is_chosen(number of the way, of
// the case); tf32 is a way of linear maps.
template <class Make, class Choose>
void check_parity_of_ways(const Make& make, const Choose& is_chosen) {
  std::vector<std::unique_ptr<Backend>> backends;
  for (const CudaOptions& way : ways) backends.push_back(make(way));
  for (const CasesOfOperation& operation : all_cases()) {
    const std::vector<Case> all = operation.cases();
    for (std::size_t way = 0; way < backends.size(); ++way) {
      std::vector<Case> cases;
      for (std::size_t i = 0; i < all.size(); ++i)
        if (is_chosen(way, i)) cases.push_back(all[i]);
      if (!ways[way].tf32)
        check_parity_of(*backends[way], operation.name, cases);
      else if (std::string_view(operation.name).starts_with("linear_"))
        check_parity_in_tf32(*backends[way], operation.name, cases);
    }
  }
}

// On a GPU by way of its module; of the cases every `step`-th.
void check_parity_of_gpu(const CudaModule& module, std::size_t step) {
  check_parity_of_ways(
      [&](const CudaOptions& way) { return std::make_unique<ReachableBackend>(module.make_backend(way)); },
      [&](std::size_t, std::size_t i) { return i % step == 0; });
}

}  // namespace

TEST_CASE("kernels_of_gpus_agree_with_the_f64_reference") {
  // A kernel's types differ in how elements are loaded and stored, those of 16 bits in nothing else, and tf32 differs
  // from fp32 in what cuBLASLt is asked for: fp16 and tf32 have every third case, and under sanitizers each.
  check_parity_of_ways(make_kernels_on_host, [](std::size_t way, std::size_t i) {
    const bool is_fp32_or_bf16 = way < 2;
    return (!is_sanitized && is_fp32_or_bf16) || i % 3 == way % 3;
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
