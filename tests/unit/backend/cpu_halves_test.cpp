// What runs in bf16 and fp16 rely on beyond right values (those are in the parity suite): how every instruction set
// rounds, and that bits depend on neither threads nor packing.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/half_products.h"
#include "backend/cpu/instruction_sets.h"
#include "base/error.h"
#include "base/numbers/philox.h"
#include "support/near.h"
#include "support/numbers.h"

namespace scaletrain {
namespace {

using Bits = std::vector<std::uint16_t>;

constexpr DType halves[] = {DType::bf16, DType::f16};

// Those of this processor.
std::vector<std::string> instruction_sets() {
  std::vector<std::string> found;
  for (const char* const set : {"portable", "avx2", "avx512", "avx512_bf16", "amx_bf16"}) {
    try {
      make_cpu_backend({.threads = 1, .instruction_set = set});
      found.emplace_back(set);
    } catch (const UserError&) {
      MESSAGE("skipped: " << std::string(set));
    }
  }
  return found;
}

struct Machine {
  Machine(DType compute, int threads, const std::string& set = "auto")
      : backend(make_cpu_backend({.threads = threads, .instruction_set = set, .compute = compute})),
        stream(backend->make_stream()) {}

  void run(const Operation& op) { backend->run(*stream, op); }

  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
};

template <class T>
View view_of(std::vector<T>& values, DType type, Shape shape) {
  REQUIRE(shape.num_elements() == static_cast<std::int64_t>(values.size()));
  return {values.data(), type, shape};
}

Bits random_halves(DType type, std::int64_t count, const std::string& name, float mean = 0.0F) {
  std::vector<float> floats(static_cast<std::size_t>(count));
  fill_normal(philox_key(7, name), 0, mean, 1.0F, floats);
  Bits bits(floats.size());
  convert_floats(DType::f32, floats.data(), type, bits.data(), bits.size());
  return bits;
}

std::vector<float> floats_of(DType type, const Bits& bits) {
  std::vector<float> floats(bits.size());
  convert_floats(type, bits.data(), DType::f32, floats.data(), floats.size());
  return floats;
}

struct LinearResults {
  Bits output, d_input;
  std::vector<float> d_weight, d_bias;

  bool operator==(const LinearResults&) const = default;
};

LinearResults run_linear(Machine& machine, DType type, bool packed, std::int64_t rows, std::int64_t inputs,
                         std::int64_t outputs) {
  Bits input = random_halves(type, rows * inputs, "input");
  Bits weight = random_halves(type, outputs * inputs, "weight");
  Bits bias = random_halves(type, outputs, "bias");
  LinearResults results{Bits(static_cast<std::size_t>(rows * outputs)), Bits(static_cast<std::size_t>(rows * inputs)),
                        std::vector<float>(static_cast<std::size_t>(outputs * inputs), 0.5F),
                        std::vector<float>(static_cast<std::size_t>(outputs), 0.5F)};
  const View values = view_of(weight, type, {outputs, inputs});
  const Buffer memory(machine.backend->packed_bytes(values.shape()));
  std::unique_ptr<PackedWeight> form;
  if (packed) form = machine.backend->pack(*machine.stream, values, memory.region());
  const Weight handle{.values = values, .packed = form.get()};
  const View y = view_of(results.output, type, {rows, outputs});
  const View x = view_of(input, type, {rows, inputs});
  machine.run(LinearForward{handle, view_of(bias, type, {outputs}), x, {}, y});
  machine.run(LinearBackwardInput{handle, y, view_of(results.d_input, type, {rows, inputs})});
  machine.run(LinearBackwardWeight{x, y, view_of(results.d_weight, DType::f32, {outputs, inputs}),
                                   view_of(results.d_bias, DType::f32, {outputs})});
  return results;
}

Bits run_attention(Machine& machine, DType type, bool with_sums) {
  constexpr std::int64_t tokens = 530;
  constexpr std::int64_t heads = 6;
  constexpr std::int64_t kv_heads = 3;
  constexpr std::int64_t size = 40;
  const AttentionShape shape{.batch = 2,
                             .num_queries = tokens,
                             .num_keys = tokens,
                             .heads = heads,
                             .kv_heads = kv_heads,
                             .head_size = size,
                             .scale = 0.15};
  const Shape wide{2 * tokens, heads * size};
  const Shape narrow{2 * tokens, kv_heads * size};
  Bits query = random_halves(type, wide.num_elements(), "query");
  Bits key = random_halves(type, narrow.num_elements(), "key");
  Bits value = random_halves(type, narrow.num_elements(), "value");
  Bits d_output = random_halves(type, wide.num_elements(), "d_output");
  Bits output(query.size());
  Bits d_query(query.size());
  Bits d_key(key.size());
  Bits d_value(key.size());
  std::vector<float> log_sum_exp(static_cast<std::size_t>(2 * heads * tokens));
  std::vector<float> sums(query.size(), std::numeric_limits<float>::quiet_NaN());
  const auto of_queries = [&](Bits& bits) { return HeadsView{view_of(bits, type, wide), heads * size}; };
  const auto of_keys = [&](Bits& bits) { return HeadsView{view_of(bits, type, narrow), kv_heads * size}; };
  const auto constant = [](const HeadsView& view) { return ConstHeadsView{view.values, view.row_stride}; };
  const View lse = view_of(log_sum_exp, DType::f32, {2, heads, tokens});
  const ConstHeadsView q = constant(of_queries(query));
  const ConstHeadsView k = constant(of_keys(key));
  const ConstHeadsView v = constant(of_keys(value));
  machine.run(AttentionForward{shape, q, k, v, {}, of_queries(output), lse});
  machine.run(AttentionBackward{.shape = shape,
                                .query = q,
                                .key = k,
                                .value = v,
                                .output = constant(of_queries(output)),
                                .d_output = constant(of_queries(d_output)),
                                .log_sum_exp = lse,
                                .document_start = {},
                                .d_query = of_queries(d_query),
                                .d_key = of_keys(d_key),
                                .d_value = of_keys(d_value),
                                .workspace = with_sums ? view_of(sums, DType::f32, {wide.num_elements()}) : View()});
  Bits all = output;
  for (const Bits* part : {&d_query, &d_key, &d_value}) all.insert(all.end(), part->begin(), part->end());
  return all;
}

}  // namespace

TEST_CASE("every instruction set widens all halves and rounds all kinds of floats as the host does") {
  std::vector<float> floats;
  for (std::uint32_t high = 0; high < 0x10000U; ++high)  // every exponent, ties and their neighbours
    for (const std::uint32_t low : {0x0000U, 0x0001U, 0x0fffU, 0x1000U, 0x1001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU})
      floats.push_back(std::bit_cast<float>(high << 16 | low));
  const auto count = static_cast<std::int64_t>(floats.size());
  Bits codes(0x10000);
  for (std::size_t code = 0; code < codes.size(); ++code) codes[code] = static_cast<std::uint16_t>(code);
  for (const std::string& set : instruction_sets()) {
    for (const DType type : halves) {
      CAPTURE(set);
      CAPTURE(std::string(to_text(type)));
      Machine machine(type, 2, set);
      Bits expected(floats.size());
      Bits found(floats.size());
      convert_floats(DType::f32, floats.data(), type, expected.data(), floats.size());
      machine.run(Copy{view_of(floats, DType::f32, {count}), view_of(found, type, {count})});
      CHECK(found == expected);
      std::vector<float> widened(codes.size());
      machine.run(Copy{view_of(codes, type, {0x10000}), view_of(widened, DType::f32, {0x10000})});
      const std::vector<float> values = floats_of(type, codes);
      int wrong = 0;
      for (std::size_t code = 0; code < codes.size(); ++code) {
        const bool both_nan = std::isnan(values[code]) && std::isnan(widened[code]);
        wrong += both_nan || std::bit_cast<std::uint32_t>(values[code]) == std::bit_cast<std::uint32_t>(widened[code])
                     ? 0
                     : 1;
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("bf16 products have the same bits for any number of threads, with packed weights and without") {
  for (const auto& [rows, inputs, outputs] : std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>>{
           {333, 301, 517}, {67, 2100, 130}, {1100, 40, 30}}) {
    Machine one(DType::bf16, 1);
    if (one.backend->packed_bytes({64, 64}) == 0) {
      MESSAGE("skipped: no products of bf16 on this processor");
      return;
    }
    const LinearResults expected = run_linear(one, DType::bf16, false, rows, inputs, outputs);
    for (const int threads : {1, 2, 5}) {
      CAPTURE(threads);
      Machine machine(DType::bf16, threads);
      CHECK(run_linear(machine, DType::bf16, true, rows, inputs, outputs) == expected);
      CHECK(run_linear(machine, DType::bf16, false, rows, inputs, outputs) == expected);
    }
  }
}

TEST_CASE("attention of halves has the same bits for any number of threads, and with sums of its own or without") {
  for (const std::string& set : instruction_sets()) {
    for (const DType type : halves) {
      CAPTURE(set);
      CAPTURE(std::string(to_text(type)));
      Machine one(type, 1, set);
      const Bits expected = run_attention(one, type, true);
      const std::vector<float> values = floats_of(type, expected);
      CHECK(std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); }));
      CHECK(run_attention(one, type, false) == expected);
      Machine many(type, 11, set);  // more than there are heads: blocks are the items
      CHECK(run_attention(many, type, true) == expected);
    }
  }
}

TEST_CASE("a row of NaN stays in its row, whatever the length of rows") {
  for (const std::string& set : instruction_sets()) {
    for (const std::int64_t inputs : {5, 8, 1025}) {
      CAPTURE(set);
      CAPTURE(inputs);
      Machine machine(DType::bf16, 1, set);
      Bits input = random_halves(DType::bf16, 9 * inputs, "rows");
      for (std::int64_t i = 0; i < inputs; ++i)
        input[static_cast<std::size_t>(4 * inputs + i)] = bf16_from_float(std::numeric_limits<float>::quiet_NaN());
      Bits weight = random_halves(DType::bf16, 70 * inputs, "weight");
      Bits output(9 * 70);
      machine.run(LinearForward{{.values = view_of(weight, DType::bf16, {70, inputs})},
                                {},
                                view_of(input, DType::bf16, {9, inputs}),
                                {},
                                view_of(output, DType::bf16, {9, 70})});
      const std::vector<float> found = floats_of(DType::bf16, output);
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < found.size(); ++i) wrong += std::isnan(found[i]) == (i / 70 == 4) ? 0 : 1;
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("a NaN among logits of halves is in the loss, and in the gradient of its row") {
  for (const std::string& set : instruction_sets()) {
    for (const DType type : halves) {
      for (const std::int64_t place : {0, 17, 63, 70}) {
        CAPTURE(set);
        CAPTURE(place);
        Machine machine(type, 1, set);
        Bits logits = random_halves(type, 71, "logits");
        const float nan = std::numeric_limits<float>::quiet_NaN();
        convert_floats(DType::f32, &nan, type, &logits[static_cast<std::size_t>(place)], 1);
        std::vector<std::int32_t> targets{3};
        double loss = 0;
        machine.run(
            CrossEntropy{view_of(logits, type, {1, 71}), view_of(targets, DType::i32, {1}), 1.0, number_at(loss)});
        CHECK(std::isnan(loss));
        CHECK(std::isnan(floats_of(type, logits)[0]));
      }
    }
  }
}

// The largest relative error of one rounding.
double rounding_of(DType half) {
  return half == DType::bf16 ? std::ldexp(1.0, -8) : std::ldexp(1.0, -11);
}

// Exponentials of a row that a thread has room for; those of a longer row are computed twice.
constexpr auto most_kept = static_cast<std::int64_t>(cpu::half_scratch_bytes / sizeof(float));

TEST_CASE("cross-entropy of halves is right for vocabularies of any size") {
  for (const std::string& set : instruction_sets())
    for (const DType type : halves)
      for (const std::int64_t columns : {std::int64_t{1000}, most_kept, most_kept + 1}) {
        CAPTURE(set);
        CAPTURE(to_text(type));
        CAPTURE(columns);
        Machine machine(type, 1, set);
        Bits logits = random_halves(type, columns, "logits");
        const std::vector<float> values = floats_of(type, logits);
        double sum = 0.0;
        for (const float value : values) sum += std::exp(static_cast<double>(value));
        std::vector<std::int32_t> target = {77};
        const double d_scale = static_cast<double>(columns);  // probabilities keep within what fp16 can say
        double loss = 0.0;
        machine.run(CrossEntropy{.logits = view_of(logits, type, {1, columns}),
                                 .targets = view_of(target, DType::i32, {1}),
                                 .d_scale = d_scale,
                                 .loss_sum = number_at(loss)});
        CHECK(loss == Near(std::log(sum) - static_cast<double>(values[77])).epsilon(1e-6));
        const std::vector<float> found = floats_of(type, logits);
        const double rounding = rounding_of(type);
        std::int64_t wrong = 0;
        for (std::size_t i = 0; i < values.size(); ++i) {
          const double softmax = std::exp(static_cast<double>(values[i])) / sum;
          const double expected = d_scale * (i == 77 ? softmax - 1.0 : softmax);
          // Beyond its range fp16 says infinity.
          if (type == DType::f16 && std::fabs(expected) > 65519.0 && std::isinf(found[i]) &&
              std::signbit(found[i]) == std::signbit(expected))
            continue;
          wrong += std::fabs(found[i] - expected) <= 1.01 * rounding * std::fabs(expected) + 1e-6 ? 0 : 1;
        }
        CHECK(wrong == 0);
      }
}

namespace {

template <class S>
void check_same_bits_with_a_row(const cpu::TypedKernels<S>& kernels, DType type) {
  for (const std::int64_t columns : {1, 15, 16, 17, 63, 64, 65, 129, 1000}) {
    const float infinity = std::numeric_limits<float>::infinity();
    for (const float special : {0.5F, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
      CAPTURE(columns);
      CAPTURE(special);
      Bits logits = random_halves(type, columns, "logits");
      if (columns > 1) convert_floats(DType::f32, &special, type, &logits.front(), 1);
      const auto target = static_cast<std::size_t>(columns - 1);
      Bits kept = logits;
      Bits twice = logits;
      std::vector<float> row(logits.size());
      const auto loss = [&](Bits& of, float* room) {
        return kernels.cross_entropy_row(reinterpret_cast<S*>(of.data()), of.size(), target, 3.0, 1, room);
      };
      const double with_row = loss(kept, row.data());
      const double without = loss(twice, nullptr);
      CHECK(std::bit_cast<std::uint64_t>(with_row) == std::bit_cast<std::uint64_t>(without));
      CHECK(kept == twice);
      CHECK(kept != logits);
    }
  }
}

}  // namespace

TEST_CASE("cross-entropy of halves has the same bits where exponentials are kept and where they are computed twice") {
  for (const std::string set : {"portable", "avx2", "avx512"}) {
    CAPTURE(set);
    const std::vector<std::string> found = instruction_sets();
    if (std::find(found.begin(), found.end(), set) == found.end()) continue;
    const cpu::Kernels& kernels = cpu::choose_kernels(set);
    check_same_bits_with_a_row(kernels.bf16, DType::bf16);
    check_same_bits_with_a_row(kernels.f16, DType::f16);
  }
}

// 1e-8 is less than half of fp16's smallest number, and 1e-12 than what the squares of such rows sum up to. Rows of
// zeros have nothing else to divide by.
TEST_CASE("trap: an epsilon below the smallest number of a half divides rows of zeros and of tiny values") {
  constexpr std::int64_t columns = 48;
  const Shape row{1, columns};
  struct Row {
    NormType norm;
    double value;  // of layernorm's all elements, which have no variance; of rmsnorm's with changing sign
  };
  for (const std::string& set : instruction_sets())
    for (const DType type : halves)
      for (const double epsilon : {1e-8, 1e-12})
        for (const Row& of : {Row{NormType::rmsnorm, 0.0}, Row{NormType::rmsnorm, 1e-6}, Row{NormType::rmsnorm, 1e-4},
                              Row{NormType::layernorm, 0.0}, Row{NormType::layernorm, 1e-4}}) {
          const bool is_layernorm = of.norm == NormType::layernorm;
          CAPTURE(set);
          CAPTURE(to_text(type));
          CAPTURE(epsilon);
          CAPTURE(is_layernorm);
          CAPTURE(of.value);
          Machine machine(type, 1, set);
          std::vector<float> values(columns);
          for (std::size_t i = 0; i < values.size(); ++i)
            values[i] = static_cast<float>(is_layernorm || i % 2 == 0 ? of.value : -of.value);
          Bits input(columns);
          convert_floats(DType::f32, values.data(), type, input.data(), columns);
          values = floats_of(type, input);  // as the kernel reads them
          Bits weight(columns);
          const std::vector<float> ones(columns, 1.0F);
          convert_floats(DType::f32, ones.data(), type, weight.data(), columns);
          Bits output(columns);
          std::vector<float> mean(1);
          std::vector<float> rstd(1);
          machine.run(NormForward{.type = of.norm,
                                  .epsilon = epsilon,
                                  .input = view_of(input, type, row),
                                  .weight = view_of(weight, type, {columns}),
                                  .bias = {},
                                  .output = view_of(output, type, row),
                                  .mean = is_layernorm ? view_of(mean, DType::f32, {1}) : View(),
                                  .rstd = view_of(rstd, DType::f32, {1})});
          const double value = is_layernorm ? 0.0 : std::fabs(static_cast<double>(values[0]));
          const double expected = 1.0 / std::sqrt(value * value + epsilon);
          CHECK(rstd[0] == Near(expected).epsilon(1e-5));
          // Of equal values the mean is theirs but for a rounding of f32, which the division makes larger.
          const double lost = is_layernorm ? std::ldexp(of.value, -22) * expected : 0.0;
          const std::vector<float> found = floats_of(type, output);
          for (std::size_t i = 0; i < found.size(); ++i) {
            const double wanted = is_layernorm ? 0.0 : values[i] * expected;
            CHECK(std::fabs(found[i] - wanted) <= rounding_of(type) * std::fabs(wanted) + lost + 1e-7);
          }
        }
}

TEST_CASE("packed forms need as much memory as was said before, and only where there is one") {
  const Machine floats(DType::f32, 1);
  CHECK(floats.backend->packed_bytes({100, 30}) == 0);
  const Machine portable(DType::bf16, 1, "portable");
  CHECK(portable.backend->packed_bytes({100, 30}) == 0);
  const Machine fp16(DType::f16, 1);
  CHECK(fp16.backend->packed_bytes({100, 30}) == 0);
  Machine machine(DType::bf16, 2);
  const std::size_t bytes = machine.backend->packed_bytes({100, 31});
  if (bytes == 0) return;
  CHECK(bytes == 2 * (128 * 32 + 64 * 100));  // panels of 64 columns, an even number of rows
  Bits weight = random_halves(DType::bf16, 100 * 31, "weight");
  const View values = view_of(weight, DType::bf16, {100, 31});
  const Buffer memory(bytes);
  CHECK(machine.backend->pack(*machine.stream, values, memory.region())->num_bytes() == bytes);
  Region little = memory.region();
  little.size = bytes - 1;
  CHECK_THROWS_AS(machine.backend->pack(*machine.stream, values, little), BugError);
}

TEST_CASE("the description of a backend of halves says how it multiplies") {
  CHECK(Machine(DType::bf16, 1, "portable").backend->description().find("cpu portable bf16, f32 products, 1 thread") ==
        0);
  CHECK(Machine(DType::f16, 2, "portable").backend->description().find("cpu portable fp16, f32 products, 2 threads") ==
        0);
  const Machine best(DType::bf16, 1);
  const std::string products = best.backend->packed_bytes({2, 2}) == 0 ? " bf16, f32 products" : "_bf16 products";
  CHECK(best.backend->description().find(products) != std::string::npos);
  CHECK(best.backend->workspace_bytes() == cpu_workspace_bytes(1, DType::bf16));
  CHECK_THROWS_AS(make_cpu_backend({.threads = 1, .compute = DType::f64}), BugError);
}

}  // namespace scaletrain
