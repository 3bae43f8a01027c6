// What runs rely on beyond right values: the bits of the cpu backend.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/instruction_sets.h"
#include "base/error.h"
#include "support/forwarding_backend.h"
#include "support/numbers.h"
#include "support/processor_time.h"

namespace scaletrain {
namespace {

using Floats = std::vector<float>;
using Ids = std::vector<std::int32_t>;

// Numbers in [-1, 1) that differ from each other in all bits.
Floats numbers(std::int64_t count, std::uint32_t seed) {
  Floats values(static_cast<std::size_t>(count));
  std::uint32_t state = seed * 2654435761U + 1;
  for (float& value : values) {
    state = state * 1664525U + 1013904223U;
    value = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31F;
  }
  return values;
}

Ids ids(std::int64_t count, std::int32_t bound) {
  Ids values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(static_cast<std::int32_t>(i * i * 31 % bound));
  return values;
}

View view(Floats& values, Shape shape) {
  REQUIRE(shape.num_elements() == static_cast<std::int64_t>(values.size()));
  return {values.data(), DType::f32, shape};
}
View view(Ids& values) {
  return {values.data(), DType::i32, Shape{static_cast<std::int64_t>(values.size())}};
}

struct Engine {
  explicit Engine(int threads, const std::string& instruction_set = "auto")
      : backend(make_cpu_backend({.threads = threads, .instruction_set = instruction_set})),
        stream(backend->make_stream()) {}

  template <class Op>
  void run(const Op& op) {
    backend->run(*stream, op);
  }

  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
};

// Every number that an operation wrote, one after the other.
using Results = std::vector<double>;
void append(Results& results, const Floats& values) {
  results.insert(results.end(), values.begin(), values.end());
}

bool same_bits(const Results& a, const Results& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

struct NamedCase {
  std::string name;
  std::function<Results(Engine&)> run;
};

Results run_linear(Engine& engine) {
  constexpr std::int64_t rows = 333;
  constexpr std::int64_t inputs = 301;
  constexpr std::int64_t outputs = 517;
  Floats input = numbers(rows * inputs, 1);
  Floats weight = numbers(outputs * inputs, 2);
  Floats bias = numbers(outputs, 3);
  Floats output(rows * outputs);
  Floats d_input(rows * inputs);
  Floats d_weight = numbers(outputs * inputs, 4);
  Floats d_bias = numbers(outputs, 5);
  const View w = view(weight, {outputs, inputs});
  const View y = view(output, {rows, outputs});
  engine.run(LinearForward{{.values = w}, view(bias, {outputs}), view(input, {rows, inputs}), {}, y});
  engine.run(LinearBackwardInput{{.values = w}, y, view(d_input, {rows, inputs})});
  engine.run(
      LinearBackwardWeight{view(input, {rows, inputs}), y, view(d_weight, {outputs, inputs}), view(d_bias, {outputs})});
  Results results;
  for (const Floats* values : {&output, &d_input, &d_weight, &d_bias}) append(results, *values);
  return results;
}

Results run_product(Engine& engine) {
  constexpr std::int64_t rows = 301;
  constexpr std::int64_t depth = 1100;
  constexpr std::int64_t columns = 217;
  Floats a = numbers(rows * depth, 1);
  Floats b = numbers(depth * columns, 2);
  Floats addend = numbers(rows * columns, 3);
  Floats output(rows * columns);
  Floats squares(rows * rows);
  engine.run(MatrixProduct{.a = view(a, {rows, depth}),
                           .b = view(b, {depth, columns}),
                           .addend = view(addend, {rows, columns}),
                           .output = view(output, {rows, columns}),
                           .factor = 0.5,
                           .addend_factor = -2.0});
  engine.run(MatrixProduct{.a = view(a, {rows, depth}),
                           .b = view(a, {rows, depth}),
                           .addend = {},
                           .output = view(squares, {rows, rows}),
                           .b_is_transposed = true});
  Results results;
  for (const Floats* values : {&output, &squares}) append(results, *values);
  return results;
}

Results run_attention(Engine& engine) {
  const AttentionShape shape{
      .batch = 2, .num_queries = 300, .num_keys = 300, .heads = 4, .kv_heads = 2, .head_size = 24, .scale = 0.2};
  constexpr std::int64_t wide = 4 * 24;
  constexpr std::int64_t narrow = 2 * 24;
  constexpr std::int64_t rows = 600;
  Floats query = numbers(rows * wide, 1);
  Floats key = numbers(rows * narrow, 2);
  Floats value = numbers(rows * narrow, 3);
  Floats d_output = numbers(rows * wide, 4);
  Floats output(rows * wide);
  Floats log_sum_exp(2 * 4 * 300);
  Floats d_query(rows * wide);
  Floats d_key(rows * narrow);
  Floats d_value(rows * narrow);
  const ConstHeadsView q{view(query, {rows, wide}), wide};
  const ConstHeadsView k{view(key, {rows, narrow}), narrow};
  const ConstHeadsView v{view(value, {rows, narrow}), narrow};
  const View y = view(output, {rows, wide});
  const View lse = view(log_sum_exp, {2, 4, 300});
  engine.run(AttentionForward{shape, q, k, v, {}, {y, wide}, lse});
  engine.run(AttentionBackward{shape,
                               q,
                               k,
                               v,
                               {y, wide},
                               {view(d_output, {rows, wide}), wide},
                               lse,
                               {},
                               {view(d_query, {rows, wide}), wide},
                               {view(d_key, {rows, narrow}), narrow},
                               {view(d_value, {rows, narrow}), narrow}});
  Results results;
  for (const Floats* values : {&output, &log_sum_exp, &d_query, &d_key, &d_value}) append(results, *values);
  return results;
}

Results run_norm(Engine& engine) {
  constexpr std::int64_t rows = 700;
  constexpr std::int64_t columns = 333;
  const Shape shape{rows, columns};
  Floats input = numbers(rows * columns, 1);
  Floats weight = numbers(columns, 2);
  Floats bias = numbers(columns, 3);
  Floats d_output = numbers(rows * columns, 4);
  Floats output(rows * columns);
  Floats mean(rows);
  Floats rstd(rows);
  Floats d_input(rows * columns);
  Floats d_weight(columns);
  Floats d_bias(columns);
  const View x = view(input, shape);
  const View dy = view(d_output, shape);
  const View m = view(mean, {rows});
  const View r = view(rstd, {rows});
  engine.run(NormForward{NormType::layernorm, 1e-5, x, view(weight, {columns}), view(bias, {columns}),
                         view(output, shape), m, r});
  engine.run(NormBackwardInput{NormType::layernorm, dy, x, view(weight, {columns}), m, r, {}, view(d_input, shape)});
  engine.run(NormBackwardWeight{NormType::layernorm, dy, x, m, r, view(d_weight, {columns}), view(d_bias, {columns})});
  Results results;
  for (const Floats* values : {&output, &mean, &rstd, &d_input, &d_weight, &d_bias}) append(results, *values);
  return results;
}

// More rows than partial sums are kept at a time.
Results run_cross_entropy(Engine& engine) {
  constexpr std::int64_t rows = 4500;
  constexpr std::int64_t columns = 37;
  Floats logits = numbers(rows * columns, 1);
  Ids targets = ids(rows, columns);
  for (std::size_t i = 0; i < targets.size(); i += 5) targets[i] = -1;
  double loss = 0.5;
  engine.run(CrossEntropy{view(logits, {rows, columns}), view(targets), 0.0, number_at(loss)});
  engine.run(CrossEntropy{view(logits, {rows, columns}), view(targets), 0.3, number_at(loss)});
  Results results{loss};
  append(results, logits);
  return results;
}

Results run_cross_entropy_parts(Engine& engine) {
  constexpr std::int64_t rows = 4500;
  constexpr std::int64_t columns = 37;
  Floats logits = numbers(rows * columns, 1);
  Floats other = numbers(rows * columns, 2);
  Ids targets = ids(rows, 2 * columns);
  for (std::size_t i = 0; i < targets.size(); i += 5) targets[i] = -1;
  Floats statistics(2 * rows * 3);
  const View all = view(statistics, {2, rows, 3});
  for (const std::int64_t rank : {0, 1})
    engine.run(SoftmaxStatistics{view(rank == 0 ? logits : other, {rows, columns}), view(targets), rank * columns,
                                 2 * columns, all.rows(rank, 1).reshape({rows, 3})});
  double loss = 0.5;
  engine.run(
      CrossEntropyParts{view(logits, {rows, columns}), view(targets), 0, 2 * columns, all, 0.3, number_at(loss)});
  Results results{loss};
  append(results, logits);
  append(results, statistics);
  return results;
}

Results run_sums_of_squares(Engine& engine) {
  constexpr std::int64_t count = 1'000'003;
  Floats values = numbers(count, 1);
  const ElementSpan spans[] = {{0, 7}, {11, 400'000}, {400'011, 599'992}};
  double sums[3] = {};
  engine.run(SumsOfSquares{view(values, {count}), spans, View(sums, DType::f64, {3})});
  return {sums[0], sums[1], sums[2]};
}

Results run_matrix_squares(Engine& engine) {
  constexpr std::int64_t count = 1'000'003;
  constexpr std::int64_t columns = 1000;
  Floats values = numbers(count, 1);
  Results results(1001 + columns);
  engine.run(MatrixSquares{.values = view(values, {count}),
                           .first_column = 17,
                           .rows = View(results.data(), DType::f64, {1001}),
                           .columns = View(results.data() + 1001, DType::f64, {columns})});
  return results;
}

Results run_embedding(Engine& engine) {
  constexpr std::int64_t rows = 500;
  constexpr std::int64_t columns = 300;
  Floats d_output = numbers(rows * columns, 1);
  Floats d_table(17 * columns);
  Floats d_positions(11 * columns);
  Ids tokens = ids(rows, 17);
  Ids positions = ids(rows, 11);
  engine.run(EmbeddingBackward{view(d_output, {rows, columns}), view(tokens), view(positions),
                               view(d_table, {17, columns}), view(d_positions, {11, columns})});
  Results results;
  append(results, d_table);
  append(results, d_positions);
  return results;
}

Results run_elementwise(Engine& engine) {
  constexpr std::int64_t count = 100'003;
  Floats input = numbers(count, 1);
  Floats output(count);
  engine.run(ActivationForward{ActivationType::gelu, view(input, {1, count}), view(output, {1, count})});
  Results results;
  append(results, output);
  Floats param = numbers(count, 2);
  Floats first_moment(count);
  Floats second_moment(count);
  const StepScalars step{
      .learning_rate = 1e-3, .gradient_scale = 0.5, .bias_correction1 = 0.1, .bias_correction2 = 0.05};
  const UpdateSpan spans[] = {{0, 50'001, 0.1}, {50'010, 49'000, 0.0}};
  engine.run(AdamWStep{.param = view(param, {count}),
                       .first_moment = view(first_moment, {count}),
                       .second_moment = view(second_moment, {count}),
                       .gradient = view(input, {count}),
                       .spans = spans,
                       .step = record_of(step)});
  for (const Floats* values : {&param, &first_moment, &second_moment}) append(results, *values);
  return results;
}

const std::vector<NamedCase>& cases() {
  static const std::vector<NamedCase> all = {
      {"linear", run_linear},
      {"matrix product", run_product},
      {"attention", run_attention},
      {"norm", run_norm},
      {"cross-entropy", run_cross_entropy},
      {"cross-entropy in parts", run_cross_entropy_parts},
      {"sums of squares", run_sums_of_squares},
      {"squares of a matrix", run_matrix_squares},
      {"embedding", run_embedding},
      {"elementwise", run_elementwise},
  };
  return all;
}

TEST_CASE("the same operation gives the same bits every time, and in another backend of as many threads") {
  for (const NamedCase& c : cases()) {
    CAPTURE(c.name);
    Engine engine(3);
    const Results first = c.run(engine);
    for (int repetition = 0; repetition < 5; ++repetition) CHECK(same_bits(c.run(engine), first));
    Engine other(3);
    CHECK(same_bits(c.run(other), first));
  }
}

TEST_CASE("only matrix products may depend on the number of threads") {
  for (const NamedCase& c : cases()) {
    if (c.name == "linear" || c.name == "matrix product") continue;
    CAPTURE(c.name);
    Engine one(1);
    const Results expected = c.run(one);
    for (const int threads : {2, 3, 7}) {
      CAPTURE(threads);
      Engine engine(threads);
      CHECK(same_bits(c.run(engine), expected));
    }
  }
}

TEST_CASE("gradients of weights that are multiplied as panels have the same bits for any number of threads") {
  if (cpu::choose_f32_panels("auto") == nullptr) {
    MESSAGE("skipped: no panels of floats on this processor");
    return;
  }
  const auto run = [](int threads, std::int64_t inputs, std::int64_t outputs) {
    constexpr std::int64_t rows = 700;  // several parts of k
    Engine engine(threads);
    Floats input = numbers(rows * inputs, 1);
    Floats d_output = numbers(rows * outputs, 2);
    Floats d_weight = numbers(outputs * inputs, 3);
    Floats d_bias = numbers(outputs, 4);
    engine.run(LinearBackwardWeight{.input = view(input, {rows, inputs}),
                                    .d_output = view(d_output, {rows, outputs}),
                                    .d_weight = view(d_weight, {outputs, inputs}),
                                    .d_bias = view(d_bias, {outputs})});
    Results results;
    for (const Floats* values : {&d_weight, &d_bias}) append(results, *values);
    return results;
  };
  for (const auto& [inputs, outputs] : std::vector<std::pair<std::int64_t, std::int64_t>>{{130, 530}, {530, 130}}) {
    const Results expected = run(1, inputs, outputs);
    for (const int threads : {2, 3, 7}) CHECK(same_bits(run(threads, inputs, outputs), expected));
  }
}

// Where panels multiply linear maps, with AVX-512 of more rows than with AVX2: a weight that all threads share as a
// whole, in stripes of its outputs or in rounds of k, by the forward and the gradient of the input; for AVX2 also one
// whose rows are whole pages. A processor with AVX-512 has both.
TEST_CASE("linear maps that are multiplied as panels agree with oneDNN, to the bit for any number of threads") {
  const auto packs_rows = [](const std::string& set) { return cpu::choose_f32_panels(set)->pack_a_rows != nullptr; };
  if (cpu::choose_f32_panels("auto") == nullptr) {
    MESSAGE("skipped: no panels of floats on this processor");
    return;
  }
  struct Extent {
    std::int64_t rows, inputs, outputs;
  };
  const auto run = [](int threads, const std::string& set, const Extent& e, ActivationType activation) {
    Engine engine(threads, set);
    Floats weight = numbers(e.outputs * e.inputs, 1);
    Floats bias = numbers(e.outputs, 2);
    Floats input = numbers(e.rows * e.inputs, 3);
    Floats output = numbers(e.rows * e.outputs, 4);
    const std::int64_t features = is_gated(activation) ? e.outputs / 2 : e.outputs;
    Floats activated(static_cast<std::size_t>(e.rows * features));
    const View sums = view(output, {e.rows, e.outputs});
    engine.run(LinearForward{.weight = {.values = view(weight, {e.outputs, e.inputs})},
                             .bias = view(bias, {e.outputs}),
                             .input = view(input, {e.rows, e.inputs}),
                             .addend = sums,
                             .output = sums,
                             .activation = activation,
                             .activated = view(activated, {e.rows, features})});
    Floats d_input(static_cast<std::size_t>(e.rows * e.inputs));
    engine.run(LinearBackwardInput{.weight = {.values = view(weight, {e.outputs, e.inputs})},
                                   .d_output = sums,
                                   .d_input = view(d_input, {e.rows, e.inputs})});
    std::vector<Results> results(3);
    append(results[0], output);
    append(results[1], activated);
    append(results[2], d_input);
    return results;
  };
  const auto largest = [](const Results& values) {
    double result = 0;
    for (const double value : values) result = std::max(result, std::abs(value));
    return result;
  };
  const auto check = [&](const std::string& set, const Extent& e) {
    CAPTURE(set);
    CAPTURE(e.inputs);
    for (const ActivationType activation : {ActivationType::gelu_tanh, ActivationType::swiglu}) {
      const std::vector<Results> expected = run(1, set, e, activation);
      const std::vector<Results> others = run(2, "portable", e, activation);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        CAPTURE(i);
        for (const int threads : {2, 3, 7}) CHECK(same_bits(run(threads, set, e, activation)[i], expected[i]));
        REQUIRE(expected[i].size() == others[i].size());
        Results distance = others[i];
        for (std::size_t at = 0; at < distance.size(); ++at) distance[at] -= expected[i][at];
        CHECK(largest(distance) < 1e-5 * largest(others[i]));
      }
    }
  };
  std::vector<std::string> sets{"auto"};
  if (!packs_rows("auto")) sets.emplace_back("avx2");
  for (const std::string& set : sets) {
    const std::int64_t fewest = packs_rows(set) ? 256 : 512;
    for (const Extent& e : std::vector<Extent>{
             {fewest + 1, 300, 290}, {fewest + 4, 1100, 1102}, {fewest + 3, 2100, 602}, {fewest + 2, 602, 2100}})
      check(set, e);
    if (packs_rows(set)) check(set, {70, 1024, 64});
  }
}

TEST_CASE("a NaN is never lost on the way to the loss") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const char* const set : {"portable", "auto"}) {
    CAPTURE(std::string(set));
    Engine engine(2, set);
    // At every place of a row, whole vectors and the rest.
    for (std::int64_t place = 0; place < 75; ++place) {
      Floats logits = numbers(75, 1);
      logits[static_cast<std::size_t>(place)] = nan;
      Ids target{3};
      double loss = 0;
      engine.run(CrossEntropy{view(logits, {1, 75}), view(target), 0.0, number_at(loss)});
      CHECK(std::isnan(loss));
      Floats statistics(2 * 3, 1.0F);
      const View all = view(statistics, {2, 1, 3});
      engine.run(SoftmaxStatistics{view(logits, {1, 75}), view(target), 0, 150, all.rows(0, 1).reshape({1, 3})});
      loss = 0;
      engine.run(CrossEntropyParts{view(logits, {1, 75}), view(target), 0, 150, all, 0.0, number_at(loss)});
      CHECK(std::isnan(loss));

      for (const ActivationType type : {ActivationType::gelu, ActivationType::gelu_tanh}) {
        Floats input = numbers(75, 1);
        input[static_cast<std::size_t>(place)] = nan;
        Floats output(75);
        engine.run(ActivationForward{type, view(input, {1, 75}), view(output, {1, 75})});
        CHECK(std::isnan(output[static_cast<std::size_t>(place)]));
      }

      Floats key = numbers(75, 1);
      key[static_cast<std::size_t>(place)] = nan;
      Floats query(5 * 1, 1.0F);
      Floats value = numbers(75, 2);
      Floats output(5);
      const AttentionShape shape{
          .batch = 1, .num_queries = 5, .num_keys = 75, .heads = 1, .kv_heads = 1, .head_size = 1, .first_query = 74};
      engine.run(AttentionForward{shape,
                                  {view(query, {5, 1}), 1},
                                  {view(key, {75, 1}), 1},
                                  {view(value, {75, 1}), 1},
                                  {},
                                  {view(output, {5, 1}), 1},
                                  {}});
      CHECK(std::isnan(output[4]));
    }
    Floats values = numbers(100, 1);
    values[99] = nan;
    const ElementSpan spans[] = {{0, 50}, {50, 50}};
    double sums[2] = {};
    engine.run(SumsOfSquares{view(values, {100}), spans, View(sums, DType::f64, {2})});
    CHECK_FALSE(std::isnan(sums[0]));
    CHECK(std::isnan(sums[1]));
  }
}

TEST_CASE("ids outside their table are refused before memory is touched") {
  Engine engine(2);
  Floats table(4 * 3);
  Floats output(2 * 3);
  for (const std::int32_t wrong : {-1, 4, 2'000'000'000}) {
    Ids tokens{0, wrong};
    CHECK_THROWS_AS(engine.run(EmbeddingForward{view(table, {4, 3}), {}, view(tokens), {}, view(output, {2, 3})}),
                    BugError);
    CHECK_THROWS_AS(engine.run(EmbeddingBackward{view(output, {2, 3}), view(tokens), {}, view(table, {4, 3}), {}}),
                    BugError);
  }
  Ids targets{0, 3};
  double loss = 0;
  CHECK_THROWS_AS(engine.run(CrossEntropy{view(output, {2, 3}), view(targets), 1.0, number_at(loss)}), BugError);
}

TEST_CASE("an instruction set that is unknown is refused by name") {
  for (const char* const set : {"sse9", "", "AVX2", "avx512 "}) {
    CAPTURE(std::string(set));
    CHECK_THROWS_AS(make_cpu_backend({.threads = 1, .instruction_set = set}), UserError);
  }
  CHECK_THROWS_WITH_AS(
      make_cpu_backend({.threads = 1, .instruction_set = "sse9"}),
      "instruction set \"sse9\" is unknown: expected auto, portable, avx2, avx512, avx512_bf16 or amx_bf16", UserError);
}

TEST_CASE("a senseless number of threads is refused") {
  CHECK_THROWS_AS(make_cpu_backend({.threads = -1}), UserError);
  CHECK_THROWS_AS(make_cpu_backend({.threads = 1'000'000}), UserError);
  CHECK_THROWS_AS(cpu_workspace_bytes(-1, DType::f32), UserError);
}

TEST_CASE("the description names what bits depend on") {
  Engine two(2, "portable");
  CHECK(two.backend->num_threads() == 2);
  CHECK(two.backend->description().find("cpu portable, 2 threads, oneDNN ") == 0);
  Engine one(1);
  CHECK(one.backend->description() != two.backend->description());
}

TEST_CASE("the workspace that plans assume is the one that a backend reports, and grows with the threads") {
  Engine three(3);
  CHECK(three.backend->workspace_bytes() == cpu_workspace_bytes(3, DType::f32));
  CHECK(cpu_workspace_bytes(3, DType::f32) > cpu_workspace_bytes(2, DType::f32));
}

TEST_CASE("the calibration keeps to its time and finds what a product of its size reaches") {
  for (const bool reference : {false, true}) {
    const auto backend = reference ? make_reference_backend(DType::f32) : make_cpu_backend({.threads = 1});
    const auto stream = backend->make_stream();
    const double start = processor_seconds();
    const double rate = calibrate_matmul(*backend, *stream, 0.1);
    // Far beyond the promise: sanitizers slow the one product that it makes at least.
    CHECK(processor_seconds() - start < 3.0);
    CHECK(rate > 1e6);
    CHECK(rate < 1e15);
  }
}

// Work on it takes longer, as where others have the processors meanwhile.
class StandingStream : public Stream {
 public:
  explicit StandingStream(std::unique_ptr<Stream> inner) : inner_(std::move(inner)) {}
  void synchronize() override {
    inner_->synchronize();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  void call(std::function<void()> function) override { inner_->call(std::move(function)); }
  Event record() override { return inner_->record(); }

 private:
  std::unique_ptr<Stream> inner_;
};

TEST_CASE("time in which others have the processors does not lower the calibration") {
  const auto backend = make_reference_backend(DType::f32);
  const auto stream = backend->make_stream();
  StandingStream standing(backend->make_stream());
  const double alone = calibrate_matmul(*backend, *stream, 0.2);
  // A product of the smallest size takes the oracle some milliseconds: by the clock this would be a fifth of the rate.
  CHECK(calibrate_matmul(*backend, standing, 0.2) > 0.6 * alone);
}

// Notes the largest product that it is asked for.
class ProductSizes final : public ForwardingBackend {
 public:
  ProductSizes() : ForwardingBackend(make_cpu_backend({.threads = 1})) {}

  std::int64_t largest = 0;

 private:
  void launch(Stream& stream, const Operation& op) override {
    if (const auto* const product = std::get_if<LinearForward>(&op))
      largest = std::max(largest, product->output.shape()[0]);
    inner().run(stream, op);
  }
};

// The smallest takes a tenth of a millisecond of the processor, and stands for twenty: by the clock it would be the
// last.
TEST_CASE("time in which others have the processors does not make the calibration stop at the smallest product") {
  ProductSizes backend;
  StandingStream standing(backend.make_stream());
  calibrate_matmul(backend, standing, 0.2);
  CHECK(backend.largest >= 256);
}

}  // namespace
}  // namespace scaletrain
