// The kernels of GPUs, executed by the host's processor, against the f64 reference; and what executes them, which must
// notice what a GPU would not forgive.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cuda/kernels/reduction.h"
#include "backend/cuda_module.h"
#include "base/error.h"
#include "base/file.h"
#include "cases.h"
#include "support/cuda/kernels_on_host.h"
#include "support/cuda/launched_kernels.h"
#include "support/cuda/module_of_machine.h"
#include "support/cuda/reachable_backend.h"
#include "support/forwarding_backend.h"
#include "support/numbers.h"
#include "support/sanitized_by_day.h"
#include "support/text.h"

using namespace scaletrain;
using namespace scaletrain::parity;

namespace {

constexpr CudaOptions ways[] = {
    {.compute = DType::f32}, {.compute = DType::bf16}, {.compute = DType::f16}, {.compute = DType::f32, .tf32 = true}};

// Of an operation's cases, which take long to make, each way to compute has those that is_chosen(number of the way, of
// the case); tf32 is a way of linear maps and products.
template <class Make, class Choose>
void check_parity_of_ways(const Make& make, const Choose& is_chosen) {
  std::vector<std::unique_ptr<Backend>> backends;
  for (const CudaOptions& way : ways) backends.push_back(make(way));
  for (const CasesOfOperation& operation : all_cases()) {
    const std::vector<Case> all = operation.cases();
    for (std::size_t way = 0; way < backends.size(); ++way) {
      std::vector<Case> cases;
      for (std::size_t i = 0; i < all.size(); ++i)
        if (is_chosen(way, i, all.size())) cases.push_back(all[i]);
      if (!ways[way].tf32)
        check_parity_of(*backends[way], operation.name, cases, Addresses::unaligned_by_turns);
      else if (std::string_view(operation.name).starts_with("linear_") ||
               std::string_view(operation.name) == "matrix_product")
        check_parity_in_tf32(*backends[way], operation.name, cases);
    }
  }
}

// On a GPU by way of its module; of the cases every `step`-th.
void check_parity_of_gpu(const CudaModule& module, std::size_t step) {
  check_parity_of_ways(
      [&](const CudaOptions& way) { return std::make_unique<ReachableBackend>(module.make_backend(way)); },
      [&](std::size_t, std::size_t i, std::size_t) { return i % step == 0; });
}

// Those that the sources of kernels define, by name.
std::set<std::string> kernels_of_sources() {
  std::set<std::string> kernels;
  const std::regex definition(R"(__global__\s+void\s+(__launch_bounds__\([^)]*\)\s+)?(\w+)\()");
  for (const auto& source : std::filesystem::directory_iterator(KERNELS_FOLDER)) {
    const std::string text = read_text_file(source.path(), std::size_t{1} << 20);
    std::size_t found = 0;
    for (std::sregex_iterator match(text.begin(), text.end(), definition), end; match != end; ++match, ++found)
      kernels.insert((*match)[2]);
    std::size_t marked = 0;
    for (std::size_t at = 0; (at = text.find("__global__", at)) != std::string::npos; ++at) ++marked;
    CHECK_MESSAGE(found == marked, source.path().string() << ": a __global__ that is written in another way");
  }
  return kernels;
}
std::string names_text(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

void reduce_on_host() {
  const std::vector<float> own = {1, 2};
  const std::vector<float> other = {3, 4};
  std::vector<float> sums(2);
  cuda::reduce_in_order(nullptr, {.count = 2,
                                  .operands = 2,
                                  .own_data = reinterpret_cast<const std::byte*>(own.data()),
                                  .others = reinterpret_cast<const std::byte*>(other.data()),
                                  .stride = 2 * sizeof(float),
                                  .output = reinterpret_cast<std::byte*>(sums.data())});
  CHECK(sums == std::vector<float>{4, 6});
}

// By the suite.
int runs_of_a_case() {
  return is_sanitized_by_day() ? 1 : 2;
}

// Under sanitizers one of two that reach the same memory.
std::vector<DType> library_types() {
  if (is_sanitized_by_day()) return {DType::bf16};
  return {DType::bf16, DType::f16};
}

std::vector<Case> backward_cases_of_library() {
  const std::vector<Case> all = attention_backward_cases();
  return {all.end() - 5, all.end() - 1};
}
// Numbers for two of the second's three batches, of two heads. For one batch of the first's two, whose heads share a
// key's, and for a key's of the third fewer suffice, for one head of the fourth again fewer.
constexpr std::int64_t of_two_batches = 2 * 2 * 128 * (64 + 1) + 128;
constexpr std::int64_t of_shared_heads = 2 * 128 * (64 + 1 + 64) + 128;

// Lends an attention less than its backend would take.
class LendingBackend final : public ForwardingBackend {
 public:
  LendingBackend(std::unique_ptr<Backend> backend, std::int64_t most)
      : ForwardingBackend(std::move(backend)), most_(most) {}
  AttentionWorkspace attention_workspace() const override {
    AttentionWorkspace workspace = ForwardingBackend::attention_workspace();
    workspace.most = most_;
    workspace.least_rows = 1;
    return workspace;
  }

 private:
  std::int64_t most_;
};

}  // namespace

TEST_CASE("kernels_of_gpus_agree_with_the_f64_reference") {
  // A kernel's types differ in how elements are loaded and stored, those of 16 bits in nothing else, and tf32 differs
  // from fp32 in what cuBLASLt is asked for: fp16 and tf32 have every third case. Under sanitizers fp32 and bf16 have
  // that, of operations that have many (the longest: attention, products) every second of those, and the others every
  // ninth, since they reach no other memory. By night all have all.
  const bool all = std::getenv("SCALETRAIN_PARITY_ALL") != nullptr;
  check_parity_of_ways(make_kernels_on_host, [all](std::size_t way, std::size_t i, std::size_t count) {
    constexpr std::size_t many = 50;
    const bool is_fp32_or_bf16 = way < 2;
    if (all || (!is_sanitized && is_fp32_or_bf16)) return true;
    if (!is_sanitized) return i % 3 == way % 3;
    if (is_sanitized_by_day() && !is_fp32_or_bf16) return i % 9 == way;
    return i % 3 == way % 3 && (count <= many || i / 3 % 2 == 0);
  });
  // What ranks reduce is no operation; its numbers are compared by tests of NCCL.
  reduce_on_host();
  const std::set<std::string> defined = kernels_of_sources();
  CHECK(defined.size() > 30);
  std::set<std::string> never_launched = defined;
  for (const std::string& name : cuda::names_of_kernels_that_ran())
    std::erase_if(never_launched, [&](const std::string& kernel) {
      return contains(name, "::" + kernel + "<") || contains(name, "::" + kernel + "(");
    });
  CHECK_MESSAGE(never_launched.empty(), "kernels that no case launches: " << names_text(never_launched));
}

TEST_CASE("kernels_of_gpus_leave_the_attention_that_a_library_has_kernels_for_to_it") {
  for (const std::vector<Case>& all : {attention_forward_cases(), attention_backward_cases()}) {
    for (const DType type : library_types()) {
      const auto backend = make_kernels_with_library_on_host(type);
      const int before = attention_runs_of_library();
      // Of the last cases the first four are the library's, which has no kernels for the fifth.
      check_parity_of(*backend, "attention", {all.end() - 5, all.end()});
      CHECK(attention_runs_of_library() - before == runs_of_a_case() * 4);
      // Beyond the last key, with documents, of other strides, scaled to negative numbers, with a window, a cap or
      // dropout: our own kernels', whose numbers are held above, so each type has some.
      std::vector<Case> others;
      for (std::size_t i = type == DType::f16 ? 1 : 0; i + 5 < all.size(); i += is_sanitized_by_day() ? 3 : 2)
        if (i % 4 == 0 || contains(all[i].name, " window ") || contains(all[i].name, " capped ") ||
            contains(all[i].name, " dropping "))
          others.push_back(all[i]);
      check_parity_of(*backend, "attention", others);
      CHECK(attention_runs_of_library() - before == runs_of_a_case() * 4);
    }
  }
}

TEST_CASE("a_library_s_backward_of_attention_is_cut_by_batches_and_heads_to_the_memory_that_it_is_lent") {
  const std::vector<Case> of_library = backward_cases_of_library();
  for (const DType type : library_types()) {
    const auto runs_by = [&](std::int64_t most) {
      LendingBackend backend(make_kernels_with_library_on_host(type), most);
      const int before = attention_runs_of_library();
      check_parity_of(backend, "attention", of_library);
      return (attention_runs_of_library() - before) / runs_of_a_case();
    };
    CHECK(runs_by(of_two_batches) == 2 + 2 + 3 + 2);
    CHECK(runs_by(of_two_batches - 1) == 2 + 3 + 3 + 2);
    CHECK(runs_by(of_shared_heads - 1) == 3 + 2);  // our own kernels make the first and the third
    CHECK(runs_by(0) == 0);
  }
}

TEST_CASE("a_backward_of_attention_is_lent_what_cudnn_was_seen_to_ask_for_or_what_a_part_worth_it_takes") {
  struct Seen {  // on an H100, of cuDNN 9.19
    std::int64_t batch, tokens, heads, kv_heads, size, bytes;
  };
  const AttentionWorkspace& of_gpu = cuda_attention_workspace;
  const auto shape_of = [](const Seen& seen) {
    return AttentionShape{.batch = seen.batch,
                          .num_queries = seen.tokens,
                          .num_keys = seen.tokens,
                          .heads = seen.heads,
                          .kv_heads = seen.kv_heads,
                          .head_size = seen.size};
  };
  for (const Seen& seen : std::initializer_list<Seen>{{32, 1024, 12, 12, 64, 806879488},
                                                      {16, 1024, 25, 25, 64, 840499456},
                                                      {8, 1024, 16, 16, 128, 268960000},
                                                      {8, 1024, 32, 8, 64, 605028608},
                                                      {16, 512, 12, 12, 64, 101056768},
                                                      {8, 2048, 12, 12, 64, 806093056},
                                                      {4, 4096, 12, 12, 64, 1611399424},
                                                      {2, 8192, 12, 12, 64, 3222012160},
                                                      {4, 2048, 16, 4, 128, 604504320},
                                                      {2, 4096, 16, 4, 128, 1141375232},
                                                      {1, 8192, 16, 4, 128, 2215117056},
                                                      {1, 8192, 32, 8, 128, 4430233856},
                                                      {4, 2048, 16, 16, 96, 537395456},
                                                      {4, 1024, 16, 16, 80, 134480128},
                                                      {8, 1000, 12, 12, 64, 201710848},
                                                      {64, 256, 12, 12, 64, 101449984}}) {
    const AttentionShape shape = shape_of(seen);
    CAPTURE(seen.tokens);
    CAPTURE(seen.size);
    constexpr std::int64_t to_align = 256;
    CHECK(4 * of_gpu.wanted(shape).value() == seen.bytes + to_align);
    if (of_gpu.wanted(shape) <= of_gpu.most) CHECK(of_gpu.lent(shape) == of_gpu.wanted(shape));
  }
  // Two of four batches fit; of eight groups of heads, two.
  CHECK(of_gpu.lent(shape_of({4, 4096, 12, 12, 64, 0})) == of_gpu.wanted(shape_of({2, 4096, 12, 12, 64, 0})));
  CHECK(of_gpu.lent(shape_of({3, 8192, 32, 8, 128, 0})) == of_gpu.wanted(shape_of({1, 8192, 8, 2, 128, 0})));
  // One head would, whose 16k rows are not worth it; nothing does, or would in 64 bits; and what no library is asked
  // for.
  CHECK(of_gpu.lent(shape_of({1, 16384, 2, 2, 64, 0})) == of_gpu.wanted(shape_of({1, 16384, 2, 2, 64, 0})));
  CHECK(of_gpu.lent(shape_of({1, 20480, 4, 4, 64, 0})) == 0);
  CHECK(of_gpu.lent(shape_of({1, 131072, 8, 8, 128, 0})) == 0);
  CHECK(of_gpu.lent(shape_of({1, std::int64_t{1} << 28, 256, 256, 64, 0})) == 0);
  CHECK_FALSE(of_gpu.wanted(shape_of({1, std::int64_t{1} << 28, 256, 256, 64, 0})).has_value());
  CHECK(of_gpu.lent(shape_of({8, 1024, 16, 16, 100, 0})) == 0);
  for (const Seen& other : {Seen{32, 127, 12, 12, 64, 0}, {32, 128, 12, 12, 56, 0}, {32, 128, 12, 12, 136, 0}})
    CHECK(of_gpu.lent(shape_of(other)) == 0);
  for (const int sm : {80, 89, 100, 120}) CHECK(cuda_attention_workspace_of(sm).most == 0);
  for (const int sm : {0, 90}) CHECK(cuda_attention_workspace_of(sm).most == of_gpu.most);
  CHECK(AttentionWorkspace{.most = 0}.lent(shape_of({32, 1024, 12, 12, 64, 0})) == 0);
}

// A thread block goes through several parts of a buffer as long as this, in which the spans begin and end in the midst
// of parts; launches of single spans are shorter, and have a part each.
TEST_CASE("moments_in_8_bits_of_a_long_buffer_have_the_bits_of_its_spans_alone") {
  if (is_sanitized) return;  // long there, and the parity suite reaches the same memory
  constexpr std::int64_t block = 256;
  constexpr std::int64_t num_blocks = (std::int64_t{9} << 11) + 3;
  constexpr std::int64_t count = num_blocks * block;
  const auto number = [](std::int64_t i) { return static_cast<float>((i * 40503) % 65536 - 32768) / 32768.0F; };
  struct Operands {
    std::vector<float> param, gradient, first_scales, second_scales;
    std::vector<std::uint8_t> first_codes, second_codes;
  };
  Operands whole;
  whole.first_codes.resize(count);
  whole.second_codes.resize(count);
  for (std::int64_t i = 0; i < count; ++i) {
    whole.param.push_back(number(i + 1));
    whole.gradient.push_back(number(i + 77));
    whole.first_codes[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(i * 7);
    whole.second_codes[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(i * 13);
  }
  whole.first_scales.assign(num_blocks, 0.5F);
  whole.second_scales.assign(num_blocks, 0.125F);
  Operands alone = whole;

  const StepScalars step{.learning_rate = 0.01, .bias_correction1 = 0.1, .bias_correction2 = 0.05};
  const auto backend = make_kernels_on_host({.compute = DType::f32});
  const auto stream = backend->make_stream();
  const auto run = [&](Operands& on, const std::vector<UpdateSpan>& spans) {
    backend->run(*stream, BlockAdamWStep{.param = View(on.param.data(), DType::f32, {count}),
                                         .first_codes = View(on.first_codes.data(), DType::u8, {count}),
                                         .second_codes = View(on.second_codes.data(), DType::u8, {count}),
                                         .first_scales = View(on.first_scales.data(), DType::f32, {num_blocks}),
                                         .second_scales = View(on.second_scales.data(), DType::f32, {num_blocks}),
                                         .gradient = ConstView(on.gradient.data(), DType::f32, {count}),
                                         .spans = spans,
                                         .block = block,
                                         .step = record_of(step)});
    stream->synchronize();
  };
  const std::vector<UpdateSpan> spans{{3 * block, 61 * block, 0.1},
                                      {64 * block, 13 * block, 0.0, 3.0},
                                      {num_blocks / 2 * block, block, 0.2},
                                      {(num_blocks - 21) * block, 21 * block, 0.3, 0.5}};
  const std::vector<float> before = whole.param;
  run(whole, spans);
  for (const UpdateSpan& span : spans) run(alone, {span});
  for (const UpdateSpan& span : spans)
    CHECK(whole.param[static_cast<std::size_t>(span.first)] != before[static_cast<std::size_t>(span.first)]);
  CHECK(whole.param == alone.param);
  CHECK(whole.first_codes == alone.first_codes);
  CHECK(whole.second_codes == alone.second_codes);
  CHECK(whole.first_scales == alone.first_scales);
  CHECK(whole.second_scales == alone.second_scales);
}

// What compares a GPU's numbers works where there is none: by few cases, since the kernels themselves are tested above.
TEST_CASE("a_module_s_gpu_agrees_with_the_f64_reference_over_its_streams_and_memory") {
  check_parity_of_gpu(CudaModule(FAKE_MODULE), is_sanitized ? 1000 : 100);
}

TEST_CASE("the_gpu_of_this_machine_agrees_with_the_f64_reference") {
  const auto module = module_of_machine();
  if (!module) return;
  check_parity_of_gpu(*module, 1);
  // Where a library makes it there, in parts.
  for (const DType type : {DType::bf16, DType::f16}) {
    auto gpu = std::make_unique<ReachableBackend>(module->make_backend({.compute = type}));
    if (gpu->attention_workspace().most == 0) continue;
    LendingBackend backend(std::move(gpu), of_two_batches);
    check_parity_of(backend, "attention backward", backward_cases_of_library());
  }
}
