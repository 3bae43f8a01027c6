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
  std::vector<double> scale = to_doubles(model.store.master("head.norm.weight"));
  const std::vector<double> matrix =
      to_doubles(model.store.master(spec.tie_embeddings ? "embedding.token.weight" : "head.weight"));
  for (double& value : scale) value += spec.norm_weight_offset;
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
    if (spec.logit_softcap > 0)
      for (double& logit : logits) logit = spec.logit_softcap * std::tanh(logit / spec.logit_softcap);
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
  for (ModelSpec spec : {tiny_gpt2(), tiny_llama(), tied_llama, tiny_qwen3(), tiny_gemma()}) {
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

TEST_CASE("sequences of a batch have the logits that they have alone, whatever their lengths") {
  for (ModelSpec spec : {tiny_gpt2(), tiny_llama()}) {
    const std::int64_t context = 10;
    spec.context = context;
    TestModel model(spec, make_reference_backend(DType::f64));
    model.randomise();
    const std::vector<std::int64_t> lengths = {1, 4, 7, 2, 3, 5};
    std::vector<std::vector<std::int32_t>> texts;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      std::vector<std::int32_t> text = some_tokens(context, spec.vocab);
      std::rotate(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(i), text.end());
      texts.push_back(text);
    }
    Decoder decoder(model.model, *model.backend, *model.stream, model.store, context, 6);
    for (std::size_t i = 0; i < texts.size(); ++i)
      check_logits(
          decoder.append(static_cast<std::int64_t>(i), std::span(texts[i]).first(static_cast<std::size_t>(lengths[i]))),
          full_logits(model, texts[i])[static_cast<std::size_t>(lengths[i]) - 1]);
    // Not all in every step, nor in order.
    for (const std::vector<std::int64_t>& taking_part :
         std::vector<std::vector<std::int64_t>>{{0, 1, 2, 3, 4, 5}, {5, 0, 3}, {4}, {2, 3, 0, 1, 5}}) {
      std::vector<Decoder::Step> steps;
      steps.reserve(taking_part.size());
      for (const std::int64_t i : taking_part)
        steps.push_back({i, texts[static_cast<std::size_t>(i)][static_cast<std::size_t>(decoder.length(i))]});
      const std::span<const float> logits = decoder.step(steps);
      const auto vocab = static_cast<std::size_t>(spec.vocab);
      for (std::size_t row = 0; row < taking_part.size(); ++row) {
        const auto i = static_cast<std::size_t>(taking_part[row]);
        const auto last = static_cast<std::size_t>(decoder.length(taking_part[row])) - 1;
        check_logits(logits.subspan(row * vocab, vocab), full_logits(model, texts[i])[last]);
      }
    }
    // A copy goes on as what it was made of, from where it is cut.
    decoder.copy_sequence(2, 4);
    CHECK(decoder.length(4) == 9);
    decoder.truncate(4, 5);
    const Decoder::Step next{4, texts[2][5]};
    check_logits(decoder.step(std::span(&next, 1)), full_logits(model, texts[2])[5]);
    CHECK_THROWS_AS(decoder.truncate(4, 7), BugError);
    const std::vector<Decoder::Step> twice = {{1, 0}, {1, 0}};
    CHECK_THROWS_AS(decoder.step(twice), BugError);
  }
}

TEST_CASE("a layer with a window keeps what it sees and no more, and the logits are those of the full forward") {
  ModelSpec spec = tiny_gemma();  // a layer with a window of 3, one without
  spec.context = 1100;
  TestModel model(spec, make_reference_backend(DType::f64));
  model.randomise();
  const std::vector<std::int32_t> tokens = some_tokens(1100, spec.vocab);
  const std::vector<std::vector<double>> expected = full_logits(model, tokens);
  constexpr std::int64_t kept = 2 + 3 * 256;
  const auto row = static_cast<std::size_t>(2 * spec.kv_heads * spec.head_size) * size_of(DType::f64);
  CHECK(Decoder::cache_bytes(spec, DType::f64, 1100, 2) == 2 * (kept * row) + 2 * (1100 * row));
  CHECK(Decoder::cache_bytes(spec, DType::f64, 500, 2) == 2 * 2 * (500 * row));

  Decoder decoder(model.model, *model.backend, *model.stream, model.store, 1100, 2);
  const auto append = [&](std::int64_t sequence, std::int64_t count) {
    const auto done = static_cast<std::size_t>(decoder.length(sequence));
    const auto more = static_cast<std::size_t>(count);
    const std::span<const float> logits = decoder.append(sequence, std::span(tokens).subspan(done, more));
    check_logits(logits, expected[done + more - 1]);
  };
  append(0, 700);
  // What was kept so far is all: any part can be forgotten.
  CHECK(decoder.truncate(0, 5) == 5);
  append(0, 755);
  for (int i = 0; i < 30; ++i) append(0, 1);  // room is made for one of these
  decoder.copy_sequence(0, 1);
  append(0, 290);
  for (int i = 0; i < 20; ++i) append(0, 1);
  CHECK(decoder.length(0) == 1100);
  CHECK(decoder.truncate(0, 1100 - 256) == 1100 - 256);
  append(0, 256);
  // The copy goes on from where it was made.
  CHECK(decoder.length(1) == 790);
  append(1, 3);
  CHECK(decoder.truncate(1, 400) == 0);
  CHECK(decoder.length(1) == 0);
  append(1, 300);
}
