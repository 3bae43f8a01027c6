#include "nn/transformer.h"

#include <doctest/doctest.h>

#include "model_fixture.h"
#include "support/near.h"

using namespace scaletrain;

namespace {

std::vector<ModelSpec> families() {
  ModelSpec tied_llama = tiny_llama();
  tied_llama.tie_embeddings = true;
  return {tiny_gpt2(), tiny_llama(), tied_llama, tiny_qwen3(), tiny_gemma()};
}

}  // namespace

TEST_CASE("units are embedding, blocks, head, in the order of the table") {
  const ModelSpec spec = tiny_gpt2();
  const Transformer model(spec);
  const ParamTable table = make_param_table(spec, {});
  REQUIRE(model.units().size() == table.units().size());
  for (std::size_t i = 0; i < model.units().size(); ++i) {
    CHECK(model.units()[i]->name() == table.units()[i].name);
    CHECK(model.units()[i]->index() == static_cast<int>(i));
  }
  const std::vector<BundleEntry> boundary = model.boundary({3, 5}, DType::f32);
  REQUIRE(boundary.size() == 1);
  CHECK(boundary[0].name == "hidden");
  CHECK(boundary[0].shape == Shape{15, 8});
}

TEST_CASE("a split backward gives the gradients of the whole one") {
  for (const ModelSpec& spec : families()) {
    TestModel model(spec, make_reference_backend(DType::f64));
    model.randomise();
    TestBatch batch(spec, {2, 6});
    batch.add_document(3);
    ModelHarness harness(model, batch);
    const double loss = harness.train(BackwardForm::whole);
    const auto whole = model.gradients();
    model.store.zero_gradients(*model.stream);
    CHECK(harness.train(BackwardForm::split) == loss);
    const auto split = model.gradients();
    for (const auto& entry : whole) {
      CAPTURE(entry.first);
      CHECK(entry.second == split.at(entry.first));
      CHECK(largest(entry.second) < 1e6);  // and no NaN
    }
  }
}

TEST_CASE("the loss of an evaluation is that of training") {
  for (const ModelSpec& spec : families()) {
    TestModel model(spec, make_reference_backend(DType::f64));
    model.randomise();
    TestBatch batch(spec, {2, 6});
    ModelHarness harness(model, batch);
    const double evaluated = harness.evaluate();
    CHECK(evaluated > 0.0);
    CHECK(harness.train(BackwardForm::whole) == evaluated);
  }
}

TEST_CASE("a model of zero weights gives the loss of the uniform distribution, and none for masked tokens") {
  const ModelSpec spec = tiny_gpt2();
  TestModel model(spec, make_reference_backend(DType::f64));
  TestBatch batch(spec, {2, 5});
  ModelHarness harness(model, batch);
  CHECK(harness.evaluate() == Near(8 * std::log(7.0)).epsilon(1e-14));  // 2 of 10 are masked
  model.randomise();
  batch.targets.assign(batch.targets.size(), -1);
  CHECK(harness.train(BackwardForm::whole) == 0.0);
  for (const auto& entry : model.gradients()) CHECK(largest(entry.second) == 0.0);
}

TEST_CASE("a token does not see later ones, nor another document") {
  for (const ModelSpec& spec : families()) {
    TestModel model(spec, make_reference_backend(DType::f64));
    model.randomise();
    TestBatch batch(spec, {1, 6});
    ModelHarness harness(model, batch);
    const auto hidden_of = [&](std::int64_t row) {
      harness.evaluate();
      return to_doubles(harness.hidden().rows(row, 1));
    };
    batch.ids = {1, 2, 3, 4, 5, 6};
    const std::vector<double> before = hidden_of(3);
    batch.ids = {1, 2, 3, 4, 0, 0};
    CHECK(hidden_of(3) == before);
    batch.ids = {0, 2, 3, 4, 5, 6};
    CHECK(hidden_of(3) != before);
    batch.add_document(2);
    const std::vector<double> inside = hidden_of(3);
    batch.ids = {1, 1, 3, 4, 5, 6};
    CHECK(hidden_of(3) == inside);
  }
}

TEST_CASE("the cpu backend gives the loss and gradients of the reference") {
  for (const bool is_llama : {false, true}) {
    CAPTURE(is_llama);
    ModelSpec spec = is_llama ? tiny_llama() : tiny_gpt2();
    spec.hidden = 32;
    spec.heads = 4;
    spec.kv_heads = is_llama ? 2 : 4;
    spec.head_size = 8;
    spec.ffn_hidden = 48;
    spec.context = 17;
    spec.vocab = 101;
    TestModel reference(spec, make_reference_backend(DType::f64));
    TestModel cpu(spec, make_cpu_backend({.threads = 2, .instruction_set = "auto"}));
    reference.randomise();
    cpu.randomise();
    TestBatch batch(spec, {2, 17});
    if (is_llama) batch.add_document(7);
    ModelHarness expected(reference, batch);
    ModelHarness actual(cpu, batch);
    const double loss = expected.train(BackwardForm::whole);
    const auto gradients = reference.gradients();
    double square = 0.0;
    for (const auto& entry : gradients)
      for (const double value : entry.second) square += value * value;
    for (const BackwardForm form : {BackwardForm::whole, BackwardForm::split}) {
      cpu.store.zero_gradients(*cpu.stream);
      CHECK(actual.train(form) == Near(loss).epsilon(1e-6));
      for (const auto& entry : gradients) {
        CAPTURE(entry.first);
        const std::vector<double> found = to_doubles(cpu.store.gradient(entry.first));
        double difference = 0.0;
        double norm = 0.0;
        for (std::size_t i = 0; i < found.size(); ++i) {
          difference += (found[i] - entry.second[i]) * (found[i] - entry.second[i]);
          norm += entry.second[i] * entry.second[i];
        }
        CHECK(std::sqrt(difference) <= 1e-5 * std::max(std::sqrt(norm), 1e-2 * std::sqrt(square)));
      }
    }
    CHECK(actual.evaluate() == Near(loss).epsilon(1e-6));
  }
}
