#include "nn/decode.h"

#include <doctest/doctest.h>

#include "model_fixture.h"
#include "support/philox_below.h"

using namespace scaletrain;

namespace {

// Logits of every position by the definition: the head's norm and product in plain loops over the full forward's hidden
// state.
std::vector<std::vector<double>> full_logits(TestModel& model, const std::vector<std::int32_t>& tokens) {
  const ModelSpec& spec = model.spec;
  TestBatch batch(spec, {1, static_cast<std::int64_t>(tokens.size())});
  batch.ids = tokens;
  ModelHarness harness(model, batch);
  harness.evaluate();
  const std::vector<double> hidden = to_doubles(harness.hidden());
  const std::vector<double> scale = to_doubles(model.store.master("head.norm.weight"));
  const std::vector<double> matrix =
      to_doubles(model.store.master(spec.tie_embeddings ? "embedding.token.weight" : "head.weight"));
  std::vector<double> shift(scale.size(), 0.0);
  if (model.table.find("head.norm.bias") != nullptr) shift = to_doubles(model.store.master("head.norm.bias"));
  const auto columns = static_cast<std::size_t>(spec.hidden);
  std::vector<std::vector<double>> out;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const double* x = hidden.data() + t * columns;
    double mean = 0.0;
    if (spec.norm == NormKind::layernorm)
      for (std::size_t c = 0; c < columns; ++c) mean += x[c] / static_cast<double>(columns);
    double variance = 0.0;
    for (std::size_t c = 0; c < columns; ++c) variance += (x[c] - mean) * (x[c] - mean) / static_cast<double>(columns);
    std::vector<double> logits(static_cast<std::size_t>(spec.vocab), 0.0);
    for (std::size_t v = 0; v < logits.size(); ++v)
      for (std::size_t c = 0; c < columns; ++c)
        logits[v] +=
            matrix[v * columns + c] * ((x[c] - mean) / std::sqrt(variance + spec.norm_epsilon) * scale[c] + shift[c]);
    out.push_back(logits);
  }
  return out;
}

std::vector<std::int32_t> some_tokens(std::int64_t count, std::int64_t vocab) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i)
    tokens.push_back(
        static_cast<std::int32_t>(philox_below(philox_key(9, "tokens"), std::uint64_t(i), std::uint64_t(vocab))));
  return tokens;
}

void check_logits(std::span<const float> actual, const std::vector<double>& expected) {
  REQUIRE(actual.size() == expected.size());
  const std::vector<double> found(actual.begin(), actual.end());
  CHECK(relative_error(found, expected, 0.0) <= 1e-6);
}

}  // namespace

TEST_CASE("decoding in any pieces gives the logits of the full forward") {
  ModelSpec tied_llama = tiny_llama();
  tied_llama.tie_embeddings = true;
  for (ModelSpec spec : {tiny_gpt2(), tiny_llama(), tied_llama, tiny_qwen3()}) {
    spec.context = 12;
    TestModel model(spec, make_reference_backend(DType::f64));
    model.randomise();
    const std::vector<std::int32_t> tokens = some_tokens(12, spec.vocab);
    const std::vector<std::vector<double>> expected = full_logits(model, tokens);
    Decoder decoder(model.model, *model.backend, *model.stream, model.store, 12);
    for (const std::vector<std::size_t>& pieces :
         std::vector<std::vector<std::size_t>>{{12}, {5, 1, 1, 3, 2}, std::vector<std::size_t>(12, 1)}) {
      decoder.reset();
      std::size_t done = 0;
      for (const std::size_t count : pieces) {
        const std::span<const float> logits = decoder.append(std::span(tokens).subspan(done, count));
        done += count;
        CHECK(decoder.length() == static_cast<std::int64_t>(done));
        check_logits(logits, expected[done - 1]);
      }
    }
  }
}

TEST_CASE("a long prompt goes through in pieces") {
  ModelSpec spec = tiny_llama();
  spec.layers = 1;
  TestModel model(spec, make_reference_backend(DType::f64));
  model.randomise();
  const std::vector<std::int32_t> tokens = some_tokens(300, spec.vocab);
  const std::vector<std::vector<double>> expected = full_logits(model, tokens);
  Decoder decoder(model.model, *model.backend, *model.stream, model.store, 300);
  check_logits(decoder.append(tokens), expected.back());
}

TEST_CASE("decoding on the cpu backend gives the reference's logits") {
  const ModelSpec spec = tiny_llama();
  TestModel reference(spec, make_reference_backend(DType::f64));
  TestModel cpu(spec, make_cpu_backend({.threads = 2, .instruction_set = "auto"}));
  reference.randomise();
  cpu.randomise();
  const std::vector<std::int32_t> tokens = some_tokens(6, spec.vocab);
  const std::vector<std::vector<double>> expected = full_logits(reference, tokens);
  Decoder decoder(cpu.model, *cpu.backend, *cpu.stream, cpu.store, 6);
  decoder.append(std::span(tokens).first(4));
  decoder.append(std::span(tokens).subspan(4, 1));
  const std::span<const float> logits = decoder.append(std::span(tokens).subspan(5, 1));
  const std::vector<double> found(logits.begin(), logits.end());
  CHECK(relative_error(found, expected.back(), 0.0) <= 1e-5);
}

TEST_CASE("what does not fit the context, is no token, or is nothing, is refused") {
  const ModelSpec spec = tiny_gpt2();
  TestModel model(spec, make_reference_backend(DType::f64));
  Decoder decoder(model.model, *model.backend, *model.stream, model.store, 3);
  const std::vector<std::int32_t> tokens{1, 2, 3, 4};
  CHECK_THROWS_AS(decoder.append(tokens), BugError);
  CHECK_THROWS_AS(decoder.append({}), BugError);
  const std::vector<std::int32_t> foreign{static_cast<std::int32_t>(spec.vocab)};
  CHECK_THROWS_AS(decoder.append(foreign), BugError);
  CHECK(decoder.length() == 0);
  CHECK_THROWS_AS(Decoder(model.model, *model.backend, *model.stream, model.store, spec.context + 1), BugError);
}
